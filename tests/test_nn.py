"""DataParallelModel and DataParallelCriterion in loops written by hand."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.nn import DataParallelCriterion, DataParallelModel
from tests.conftest import MODELS, Tied, mlp

Data = tuple[Any, Tensor]


def batch(count: int = 13, width: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, width, generator=generator), torch.randint(3, (count,), generator=generator)


def grads(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def same(one: dict[str, Any], other: dict[str, Any], within: float = 1e-6) -> bool:
    return one.keys() == other.keys() and all(
        (one[name] is None) == (other[name] is None)
        and (one[name] is None or float((one[name] - other[name]).abs().max()) <= within)
        for name in one
    )


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = make()
    return plain, copy.deepcopy(plain)


def both_ways(make: Callable[[], nn.Module], x: Any, y: Tensor, replicas: int = 3) -> tuple[nn.Module, nn.Module]:
    """The gradient of one batch by the plain module, and by replicas whose outputs stay."""
    plain, split = pair(make)
    nn.functional.cross_entropy(plain(x), y).backward()
    model = DataParallelModel(split, ["cpu"] * replicas)
    DataParallelCriterion(nn.CrossEntropyLoss())(model(x), y).backward()
    return plain, split


def test_a_hand_written_loop_trains_as_one_model_would() -> None:
    plain, split = pair(mlp)
    x, y = batch()
    model = DataParallelModel(split, ["cpu"] * 2)
    criterion = DataParallelCriterion(nn.CrossEntropyLoss())
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in (plain, split)]
    for _ in range(20):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = nn.functional.cross_entropy(plain(x), y)
        expected.backward()
        loss = criterion(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert same(dict(plain.state_dict()), dict(split.state_dict()))


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_those_of_one_model(kind: str) -> None:
    make, data = MODELS[kind]
    x, y = data()
    few = {name: value[:10] for name, value in x.items()} if isinstance(x, dict) else x[:10]
    plain, split = both_ways(make, few, y[:10])
    assert same(grads(plain), grads(split))


def test_recurrent_layers_and_frozen_and_unused_parameters() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 6)
            self.lstm = nn.LSTM(6, 5, batch_first=True)
            self.head = nn.Linear(5, 3)
            self.spare = nn.Linear(4, 4)
            self.lstm.bias_hh_l0.requires_grad_(False)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.lstm(self.embed(words))[0][:, -1])

    plain, split = both_ways(Text, torch.arange(35).reshape(5, 7) % 9, torch.tensor([0, 1, 2, 1, 0]))
    assert same(grads(plain), grads(split))
    assert split.lstm.bias_hh_l0.grad is None  # type: ignore[union-attr]
    assert split.spare.weight.grad is None  # type: ignore[union-attr]


def test_sparse_gradients_stay_sparse() -> None:
    plain, split = both_ways(
        lambda: nn.EmbeddingBag(9, 3, sparse=True), torch.arange(10).reshape(5, 2) % 9, torch.tensor([0, 1, 2, 1, 0])
    )
    assert split.weight.grad.is_sparse  # type: ignore[union-attr]
    assert torch.allclose(split.weight.grad.to_dense(), plain.weight.grad.to_dense())  # type: ignore[union-attr]


def test_the_first_replica_keeps_batchnorm_statistics() -> None:
    net = nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 3))
    x, _ = batch(12)
    model = DataParallelModel(net, ["cpu"] * 2)
    model(x)
    mean = net[0].running_mean.clone()  # type: ignore[operator, union-attr]
    assert torch.allclose(mean, 0.1 * x[:6].mean(0), atol=1e-6)
    net.eval()  # replicas follow the module's mode and its buffers
    assert torch.allclose(torch.cat(list(model(x))), net(x), atol=1e-6)
    assert torch.equal(mean, net[0].running_mean)  # type: ignore[arg-type]


def test_outputs_stay_in_parts_and_can_be_gathered() -> None:
    net = mlp()
    x, _ = batch(7)
    model = DataParallelModel(net, ["cpu"] * 3)
    outputs = model(x)
    assert [len(part) for part in outputs] == [3, 2, 2] == list(outputs.counts)
    assert torch.allclose(model.gather(outputs), net(x), atol=1e-6)
    assert [len(part) for part in model(x[:2])] == [1, 1]
    assert [len(part) for part in DataParallelModel(net, ["cpu"] * 2, shares=[1, 6])(x)] == [1, 6]


def test_several_arguments_and_gradients_of_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x: Tensor, scale: Tensor, *, shift: Tensor) -> tuple[Tensor, str]:
            return self.layer(x) * scale + shift, "kept"

    net = Two()
    x, _ = batch(8)
    scale = torch.rand(8, 1)
    ways = []
    for call in (
        net,
        lambda *a, **k: (lambda model: model.gather(model(*a, **k)))(DataParallelModel(net, ["cpu"] * 2)),
    ):
        own = x.clone().requires_grad_()
        output, word = call(own, scale, shift=torch.tensor(1.0))
        (output**2).sum().backward()
        assert word == "kept"
        ways.append(own.grad)
    assert torch.allclose(ways[0], ways[1], atol=1e-5)  # type: ignore[arg-type]


def test_replicas_run_in_threads_of_their_own_both_ways() -> None:
    seen: dict[str, set[str]] = {"forward": set(), "backward": set()}

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen["forward"].add(threading.current_thread().name)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            seen["backward"].add(threading.current_thread().name)
            return gradients[0]

    class Noted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            return Note.apply(self.layer(x))

    x, y = batch()
    DataParallelCriterion(nn.functional.cross_entropy)(DataParallelModel(Noted(), ["cpu"] * 2)(x), y).backward()
    assert seen["forward"] == seen["backward"]
    assert len(seen["forward"]) == 2
    assert threading.current_thread().name not in seen["forward"]


def test_arithmetic_and_grad_mode_of_the_caller_hold_in_threads() -> None:
    x, _ = batch()
    model = DataParallelModel(mlp(), ["cpu"] * 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(output.dtype == torch.bfloat16 for output in model(x))
    assert all(output.dtype == torch.float32 for output in model(x))
    with torch.no_grad():
        assert not any(output.requires_grad for output in model(x))


def test_two_calls_before_one_backward_add_up() -> None:
    plain, split = pair(mlp)
    x, y = batch()
    model, criterion = DataParallelModel(split, ["cpu"] * 2), DataParallelCriterion(nn.CrossEntropyLoss())
    (nn.functional.cross_entropy(plain(x), y) + nn.functional.cross_entropy(plain(x * 2), y)).backward()
    (criterion(model(x), y) + criterion(model(x * 2), y)).backward()
    assert same(grads(plain), grads(split))


def test_a_second_walk_over_the_same_outputs_is_refused() -> None:
    x, y = batch()
    loss = DataParallelCriterion(nn.CrossEntropyLoss())(DataParallelModel(mlp(), ["cpu"] * 2)(x), y)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="walked back already"):
        loss.backward()


def test_wrappers_can_be_copied_and_saved() -> None:
    model = DataParallelModel(Tied(), ["cpu"] * 2)
    x, _ = batch(6, 12)
    model(x)
    again = copy.deepcopy(model)
    with torch.no_grad():
        again.module.head.bias.add_(1.0)  # type: ignore[union-attr, operator]
    assert torch.allclose(again.gather(again(x)), model.gather(model(x)) + 1.0, atol=1e-6)
    assert set(model.state_dict()) == {f"module.{name}" for name in Tied().state_dict()}


def test_criteria_with_buffers_work_on_every_replica() -> None:
    x, y = batch()
    net = mlp()
    weight = torch.ones(3)
    criterion = DataParallelCriterion(nn.CrossEntropyLoss(weight=weight))
    expected = nn.functional.cross_entropy(net(x), y).item()
    assert criterion(DataParallelModel(net, ["cpu"] * 2)(x), y).item() == pytest.approx(expected, abs=1e-6)


def test_mistakes_are_answered_in_one_line() -> None:
    net = mlp()
    x, y = batch(8)
    model = DataParallelModel(net, ["cpu"] * 2)
    with pytest.raises(mh.BadInput, match="the outputs hold 8 samples in 2 parts, the targets 7"):
        DataParallelCriterion(nn.CrossEntropyLoss())(model(x), y[:7])
    with pytest.raises(mh.BadInput, match=r"a tensor of shape \(7,\) in a batch of 8 samples cannot be split"):
        model(x, y[:7])
    with pytest.raises(mh.BadInput, match="shares=1 has 1 numbers but there are 2 replicas"):
        DataParallelModel(net, ["cpu"] * 2, shares=[1])
    with pytest.raises(mh.BadInput, match="the model is on cpu, so the first replica must be there"):
        DataParallelModel(net, ["cuda:0", "cuda:1"])
    flat = DataParallelModel(nn.Flatten(0), ["cpu"] * 2)
    with pytest.raises(mh.BadInput, match="their first dimension must count samples"):
        flat.gather(flat(x))


def test_the_names_are_found_and_misspelt_ones_answered() -> None:
    assert mh.nn.DataParallelModel is DataParallelModel
    with pytest.raises(
        AttributeError, match=r'manyhands\.nn has no "DataParalelModel"; did you mean "DataParallelModel"'
    ):
        _ = mh.nn.DataParalelModel
    assert "DataParallelCriterion" in dir(mh.nn)
