"""Stretches of text, the loss per character, and writing."""

import logging
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from manyhands.errors import BadInput
from manyhands.tasks import load_task, shakespeare


class Counting(nn.Module):
    """Guesses, for sure, the symbol after the last one."""

    def __init__(self, sureness: float = 50.0):
        super().__init__()
        self.sureness = nn.Parameter(torch.tensor(sureness))

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        following = (symbols + 1) % len(shakespeare.SYMBOLS)
        return nn.functional.one_hot(following, len(shakespeare.SYMBOLS)) * self.sureness


@pytest.mark.usefixtures("no_data")
def test_a_target_is_its_input_one_character_on(caplog: pytest.LogCaptureFixture):
    task = load_task("shakespeare")
    with caplog.at_level(logging.WARNING, logger="manyhands"):
        (inputs, targets), (test, _) = task.train(), task.test()
    assert len(caplog.records) == 1
    assert "shakespeare: training on a made-up play instead" in caplog.text
    assert inputs.shape[1] == test.shape[1] == shakespeare.STRETCH
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    text = shakespeare.made_up()
    stretch = "".join(shakespeare.SYMBOLS[number] for number in inputs[0])
    assert text.startswith(stretch)
    assert set(text) <= set(shakespeare.SYMBOLS)
    assert torch.equal(inputs[1, : shakespeare.STRETCH // 2], inputs[0, shakespeare.STRETCH // 2 :])


def test_the_loss_is_the_mean_over_characters():
    task = load_task("shakespeare")
    scores, targets = torch.zeros(3, 7, 65), torch.zeros(3, 7, dtype=torch.int64)
    assert task.loss(scores, targets).item() == pytest.approx(math.log(65))
    scores[0, 0, 0] = 100.0
    assert task.loss(scores, targets).item() == pytest.approx(math.log(65) * 20 / 21)


@pytest.mark.soak
@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("model", ["lstm", "gpt"])
def test_it_learns(model: str):
    task = load_task(f"shakespeare:model={model}")
    inputs, targets = task.train()
    torch.manual_seed(0)
    net = task.model()
    optimizer = task.optimizer(net.named_parameters())
    for batch in torch.randperm(len(inputs))[:90].split(6):
        optimizer.zero_grad()
        loss = task.loss(net(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
    assert loss < 3.4  # it began at 4.2


def test_writing_draws_from_the_guesses():
    written = shakespeare.write(Counting(), 5, start="A")
    assert written == "BCDEF"
    assert load_task("shakespeare").sample(Counting(), 70) == (shakespeare.SYMBOLS[1:] + shakespeare.SYMBOLS)[:70]


def test_temperature_is_how_freely_it_writes():
    unsure = Counting(sureness=2.0)
    assert load_task("shakespeare:temperature=0.01").sample(unsure, 20) == shakespeare.SYMBOLS[1:21]
    assert load_task("shakespeare:temperature=1.0").sample(unsure, 20) != shakespeare.SYMBOLS[1:21]
    with pytest.raises(BadInput, match=r"option temperature must be above 0 \(found 0.0\)"):
        load_task("shakespeare:temperature=0")


def test_writing_is_repeatable_and_leaves_model_and_random_state_alone():
    task = load_task("shakespeare")
    torch.manual_seed(0)
    model = task.model().train()
    state = torch.get_rng_state()
    assert task.sample(model, 20) == task.sample(model, 20)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert len(task.sample(model, 200)) == 200  # longer than what the model sees at once


def test_the_real_files(real_data: Path):
    if not (real_data / "text").is_dir():
        pytest.skip("no texts there")
    assert len(shakespeare.text()) == 1_115_394
    assert set(shakespeare.text()) == set(shakespeare.SYMBOLS)
    assert len(load_task("shakespeare").train()[0]) > 15_000
