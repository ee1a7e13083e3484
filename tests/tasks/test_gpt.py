"""The gpt task: GPT-2's shape, a text's bytes or random tokens, and the weights of `single` under every exact strategy."""

import functools
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.errors import BadInput
from manyhands.tasks import gpt as task_file
from manyhands.tasks import load_task
from manyhands.tasks.models import gpt
from tests.conftest import Command, quick_fit

SHORT = "gpt:size=tiny,sequence=8,tokens=100"


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.bin"
    path.write_bytes(bytes(range(256)) * 4)
    return path


def test_the_sizes_are_those_published():
    """GPT-2 has 124,439,808; the vocabulary's padding adds 47 rows of 768, and the keys of 12 layers have no bias."""
    with torch.device("meta"):
        small, tiny = load_task("gpt:size=small").model(), load_task("gpt").model()
    assert parameters(small) == 124_439_808 + 47 * 768 - 12 * 768
    assert 10e6 < parameters(tiny) < 11e6
    assert small[0].places.shape == (1024, 768)
    assert small[-1].weight is small[0].symbols.weight
    assert small[-1].weight.shape[0] == 50_304


def test_weights_start_as_those_of_gpt_2():
    torch.manual_seed(0)
    model = gpt(1000, 64, width=96, heads=4, layers=8, tied=True).requires_grad_(False)
    block = model[1]
    for weight in (model[0].symbols.weight, model[0].places, block.attend[1].ask.weight, block.think[1].weight):
        assert float(weight.std()) == pytest.approx(0.02, rel=0.05)
    for last in (block.attend[1].join, block.think[3]):
        assert float(last.weight.std()) == pytest.approx(0.02 / 16**0.5, rel=0.05)
        assert not last.bias.any()
    scores = model(torch.randint(1000, (2, 64)))
    assert float(task_file.next_symbol_loss(scores, torch.randint(1000, (2, 64)))) == pytest.approx(
        math.log(1000), rel=0.02
    )


def test_what_the_loss_does_not_depend_on_is_left_out():
    """A bias of the keys got gradients of rounding alone; Adam made whole steps of them, and no strategy was exact."""
    torch.manual_seed(0)
    model = gpt(40, 16, width=32, heads=4, layers=2, tied=True).double()
    tokens = torch.randint(40, (4, 17))
    task_file.next_symbol_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().amax() > 1e-6, name
        assert (parameter.grad.abs() > 1e-12).double().mean() > 0.95, name


def test_random_tokens_are_those_of_the_seed():
    one, same, other = (
        mh.fit(load_task(SHORT).replace(seed=seed, batch_size=4), max_steps=1, device="cpu", progress=False).losses
        for seed in (0, 0, 1)
    )
    assert one == same != other
    task = load_task("gpt:size=small,sequence=50,tokens=5612")
    torch.manual_seed(0)
    inputs, targets = task.train()
    assert inputs.shape == targets.shape == (101, 50)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(inputs[1:, 0], targets[:-1, -1])  # no token is left out between sequences
    assert 45_000 < targets.max() < 50_257  # nothing of the padding
    torch.manual_seed(0)
    assert torch.equal(
        task.test()[0][0], torch.randint(50_257, (5612,), generator=torch.Generator().manual_seed(0))[5051:5101]
    )


def test_a_text_is_its_bytes_and_its_last_tenth_is_for_testing(text: Path):
    task = load_task(f"gpt:text={text},sequence=16")
    (inputs, targets), (test, _) = task.train(), task.test()
    assert bytes(inputs[0].tolist()) == bytes(range(16))
    assert targets[0].tolist() == list(range(1, 17))
    assert len(inputs) == (1024 - 102 - 1) // 16
    assert len(test) == (102 - 1) // 16
    assert int(test[0, 0]) == (1024 - 102) % 256
    assert task.model()[-1].weight.shape == (256, 384)


def test_a_short_text_still_has_a_sequence_to_test_on(text: Path):
    text.write_bytes(b"x" * 34)
    task = load_task(f"gpt:text={text},sequence=16")
    assert len(task.train()[0]) == len(task.test()[0]) == 1


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        (None, "", r'cannot read the text ".*text.bin": no such file or directory'),
        (
            b"",
            "",
            r"has 0 tokens; with sequence=256 at least 514 are needed, a sequence to train on and one to test on",
        ),
        (b"x" * 33, ",sequence=16", r"has 33 tokens; with sequence=16 at least 34 are needed"),
        (b"x" * 99, ",size=huge", r'option size needs one of tiny, small \(found "huge"\)'),
        (b"x" * 99, ",tokens=50", r"text has tokens of its own; leave out the option tokens"),
        (b"x" * 99, ",sequence=0", r"option sequence must be at least 1 \(found 0\)"),
        (b"x" * 99, ",temperature=0", r"option temperature must be above 0 \(found 0.0\)"),
    ],
)
def test_bad_input_is_one_line(command: Command, text: Path, content: bytes | None, options: str, reason: str):
    text.unlink() if content is None else text.write_bytes(content)
    code, _, err = command("train", f"gpt:text={text}{options}", "--quiet")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(reason, err), err


def test_fewer_tokens_than_two_sequences_are_refused():
    with pytest.raises(BadInput, match=r"tokens=17 has 17 tokens; with sequence=8 at least 18 are needed"):
        load_task("gpt:sequence=8,tokens=17").train()
    assert len(load_task("gpt:sequence=8,tokens=18").train()[0]) == 1


def test_decay_is_for_matrices():
    groups = load_task(SHORT).optimizer(load_task(SHORT).model().named_parameters()).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {value.ndim for value in groups[0]["params"]} == {2}
    assert {value.ndim for value in groups[1]["params"]} == {1}


def test_it_writes_bytes_after_a_text_alone(text: Path):
    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sureness = nn.Parameter(torch.tensor(50.0))

        def forward(self, symbols: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot((symbols + 55) % 256, 256) * self.sureness

    assert load_task(f"gpt:text={text}").sample(Repeats(), 3) == "Ax" + bytes([175]).decode(errors="replace")
    assert load_task(SHORT).sample is None


REPEAT = [
    pytest.param(name, marks=pytest.mark.soak) for name in ("model_parallel", "parameter_server", "data_parallel")
]
EXACT = ["ddp", "fsdp", "pipeline:chunks=2", *REPEAT]


@pytest.fixture(scope="module")
def single() -> mh.Run:
    return quick_fit(plain_task(), "single", max_steps=2)


def plain_task() -> mh.Task:
    """With SGD: Adam divides by a gradient's own size, so that of one that is all rounding it makes a whole step."""
    return load_task(SHORT, batch_size=4).replace(optimizer=functools.partial(torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize("strategy", EXACT)
def test_exact_strategies_train_the_weights_of_single(strategy: str, single: mh.Run):
    """The embedding is tied to the last layer: a cut model has it on its first and on its last stage."""
    run = quick_fit(plain_task(), strategy, ranks=2, max_steps=2)
    assert run.exact, run.exact_reason
    assert run.losses == pytest.approx(single.losses, rel=1e-5)
    for name, value in single.weights.items():
        torch.testing.assert_close(run.weights[name], value, rtol=1e-5, atol=1e-6)
    assert torch.equal(run.weights["0.symbols.weight"], run.weights["8.weight"])


def test_hogwild_trains_it():
    run = quick_fit(load_task(SHORT, batch_size=4), "hogwild", ranks=2, max_steps=2)
    assert (run.status, len(run.losses)) == ("done", 2)
