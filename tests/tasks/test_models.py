"""The models: their sizes, their chains, and what each normalisation promises."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.schedules import cosine
from manyhands.tasks.models import (
    GhostBatchNorm2d,
    Normalise,
    SampleNorm2d,
    ScaledConv2d,
    character_lstm,
    gpt,
    lenet,
    mobilenetv2,
    resnet20,
    resnet50,
    sentence_lstm,
    start_from,
)
from manyhands.tasks.models.norms import Residual, _group_norm_in_place

NORMS = ["batch", "group", "none", "ghost"]
small_mobilenet = lambda norm: mobilenetv2(norm=norm, width=0.25)  # noqa: E731


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_published_sizes():
    assert parameters(lenet()) == 61_706
    assert parameters(mobilenetv2()) == 2_295_834
    assert 0.26e6 < parameters(resnet20()) < 0.28e6
    assert 23.4e6 < parameters(resnet50()) < 23.6e6
    assert parameters(mobilenetv2(width=0.5)) < 0.4 * parameters(mobilenetv2())


def test_normalise_treats_bytes_and_fractions_alike():
    bytes_ = torch.tensor([0, 51, 255], dtype=torch.uint8)
    layer = Normalise(0.2, 0.5)
    assert layer(bytes_).tolist() == pytest.approx([-0.4, 0.0, 1.6], abs=1e-6)
    assert layer(bytes_ / 255).tolist() == pytest.approx([-0.4, 0.0, 1.6], abs=1e-6)
    assert layer(bytes_).dtype == torch.float32
    assert layer((bytes_ / 255).bfloat16()).dtype == torch.bfloat16
    assert not layer.state_dict()


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (lenet(), torch.zeros(2, 1, 28, 28, dtype=torch.uint8)),
        (mobilenetv2(width=0.25), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)),
        (mobilenetv2("none", width=0.25), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)),
        (mobilenetv2("group", width=0.25), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)),
        (resnet20("group"), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)),
        (resnet50(width=0.25), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)),
        (character_lstm(65), torch.zeros(2, 20, dtype=torch.int64)),
        (gpt(65, 20), torch.zeros(2, 20, dtype=torch.int64)),
    ],
    ids=["lenet", "mobilenetv2", "mobilenetv2-none", "mobilenetv2-group", "resnet20", "resnet50", "lstm", "gpt"],
)
def test_models_are_chains_that_can_be_traced(model: nn.Sequential, example: torch.Tensor):
    model.eval()
    step_by_step = example
    for link in model:
        step_by_step = link(step_by_step)
    assert torch.equal(step_by_step, model(example))
    assert torch.allclose(torch.fx.symbolic_trace(model)(example), step_by_step, atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("make", "norm"),
    [
        *((resnet20, norm) for norm in ("batch", "none")),
        *(pytest.param(small_mobilenet, norm, marks=[pytest.mark.soak] if norm != "ghost" else []) for norm in NORMS),
    ],
    ids=["resnet20-batch", "resnet20-none", *(f"mobilenetv2-{norm}" for norm in NORMS)],
)
def test_every_normalisation_trains(make: Callable[[str], nn.Module], norm: str):
    """Four kinds of noisy stripes are told apart after a few steps."""
    torch.manual_seed(0)
    model = make(norm)
    stripes = (torch.arange(16) // 2 % 2 * 120).expand(3, 16, 16)
    kinds = torch.stack([stripes, stripes.mT, 120 - stripes, torch.full_like(stripes, 60)])
    labels = torch.arange(20) % 4
    rate = 0.05 if norm in ("batch", "ghost") else 0.02  # batch statistics bear more
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    schedule = cosine(warmup=0.4)(optimizer, 20)
    losses = []
    for _ in range(20):
        images = (kinds[labels] + torch.randint(0, 120, (20, 3, 16, 16))).to(torch.uint8)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert 1.5 < losses[0] < 3.5
    assert min(losses[-3:]) < 0.5 * losses[0]


@pytest.mark.parametrize("norm", ["group", "none"])
def test_without_batch_statistics_a_sample_does_not_see_the_others(norm: str, images: torch.Tensor):
    torch.manual_seed(0)
    model = small_mobilenet(norm)
    assert torch.allclose(model(images)[:2], model(images[:2]), atol=1e-5)


def test_batch_statistics_do_see_the_others(images: torch.Tensor):
    torch.manual_seed(0)
    model = small_mobilenet("batch")
    assert not torch.allclose(model(images)[:2], model(images[:2]), atol=1e-3)


def test_ghost_normalisation_is_batchnorm_on_parts_of_32():
    torch.manual_seed(0)
    ghost, plain = GhostBatchNorm2d(4), nn.BatchNorm2d(4)
    batch = torch.randn(80, 4, 3, 3) * 3 + torch.arange(80.0)[:, None, None, None]
    expected = torch.cat([plain(part) for part in batch.split(32)])
    assert torch.allclose(ghost(batch), expected)
    assert torch.allclose(ghost.running_mean, plain.running_mean)
    ghost.eval(), plain.eval()
    assert torch.allclose(ghost(batch), plain(batch))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_group_normalisation_on_a_gpu_is_that_of_torch(layout: torch.memory_format):
    torch.manual_seed(0)
    layer = SampleNorm2d(48)
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    images = (torch.randn(3, 48, 4, 5) * 3 + 2).to(memory_format=layout)
    ours = _group_norm_in_place(images, 3, layer.weight, layer.bias, layer.eps)
    assert layer.num_groups == 3  # of 16 channels
    assert torch.allclose(ours, F.group_norm(images, 3, layer.weight, layer.bias), atol=1e-5)
    assert ours.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(("channels", "groups"), [(8, 1), (24, 1), (40, 2), (160, 10)])
def test_groups_divide_any_number_of_channels(channels: int, groups: int):
    assert SampleNorm2d(channels).num_groups == groups


@pytest.mark.parametrize(("make", "norm"), [(small_mobilenet, "none"), (small_mobilenet, "group"), (resnet20, "none")])
def test_gains_and_biases_start_from_images(make: Callable[[str], nn.Module], norm: str):
    """Without it the images were a quarter as far apart after 18 blocks as they are with BatchNorm (docs/tasks.md)."""
    torch.manual_seed(0)
    images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8).repeat_interleave(2, 2).repeat_interleave(2, 3)
    model = make(norm)
    start_from(model, images)
    found: dict[str, tuple[torch.Tensor, float]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, ScaledConv2d | SampleNorm2d):
            layer.register_forward_hook(
                lambda layer, inputs, output, name=name: found.update({name: (output.clone(), layer.share)})
            )
    model(images)
    assert len(found) > 20
    for name, (output, share) in found.items():
        assert output.mean((0, 2, 3)).abs().max() < 0.02, name
        assert torch.allclose(output.std((0, 2, 3)), torch.tensor(share), atol=0.02), name


def test_a_channel_that_is_the_same_everywhere_keeps_its_gain():
    layer = ScaledConv2d(3, 4, 1, stride=1, groups=1, after_relu=False, share=1.0)
    start_from(layer, torch.zeros(2, 3, 4, 4))
    assert torch.equal(layer.gain, torch.ones(4))


def test_without_batch_statistics_every_block_has_a_shortcut():
    for norm, count in (("batch", 14), ("removed", 14), ("none", 17), ("group", 17)):
        blocks = [module for module in small_mobilenet(norm).modules() if isinstance(module, Residual)]
        assert len(blocks) == count, norm


def test_removed_is_batch_without_its_normalisation():
    """The published study took every BatchNorm out and put nothing in its place: no bias, no gain."""
    torch.manual_seed(0)
    removed = small_mobilenet("removed")
    torch.manual_seed(0)
    plain = small_mobilenet("batch")
    weights = [value for name, value in plain.named_parameters() if value.ndim > 1 or name.startswith("20.")]
    assert all(torch.equal(a, b) for a, b in zip(removed.parameters(), weights, strict=True))


@pytest.mark.parametrize("model", [character_lstm(65), gpt(65, 30)], ids=["lstm", "gpt"])
def test_the_next_symbol_is_guessed_from_those_before_it(model: nn.Module):
    symbols = torch.randint(0, 65, (2, 30))
    changed = symbols.clone()
    changed[:, 20:] = 3
    before, after = model(symbols), model(changed)
    assert before.shape == (2, 30, 65)
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-5)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-3)


def test_sentences_of_any_order_and_padding_give_the_same_answers():
    torch.manual_seed(0)
    model = sentence_lstm(100).eval()
    words, lengths = torch.randint(1, 100, (5, 12)), torch.tensor([3, 12, 1, 7, 7])
    words[torch.arange(12) >= lengths[:, None]] = 0
    whole = model({"words": words, "lengths": lengths})
    order = torch.tensor([4, 2, 0, 1, 3])
    assert torch.allclose(model({"words": words[order], "lengths": lengths[order]}), whole[order], atol=1e-6)
    wider = {"words": F.pad(words, (0, 9)), "lengths": lengths}
    assert torch.allclose(model(wider), whole, atol=1e-6)
    alone = torch.cat(
        [model({"words": words[i : i + 1, :n], "lengths": lengths[i : i + 1]}) for i, n in enumerate(lengths)]
    )
    assert torch.allclose(alone, whole, atol=1e-6)


def test_words_are_left_out_whole_while_training():
    torch.manual_seed(0)
    embed = sentence_lstm(100, word_dropout=0.5)[0]
    vectors, _ = embed({"words": torch.full((4, 50), 7), "lengths": torch.full((4,), 50)})
    gone = (vectors == 0).all(-1)
    assert 60 < gone.sum() < 140
    assert torch.equal(gone, (vectors == 0).any(-1))


@pytest.mark.parametrize("make", [lenet, resnet20, lambda: sentence_lstm(50), lambda: gpt(65, 8)])
def test_copies_are_equal_and_apart(make: Callable[[], nn.Module]):
    model = make()
    other = copy.deepcopy(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
