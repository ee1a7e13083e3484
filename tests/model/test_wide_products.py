"""Products by oneDNN are the products, only large ones are, only while a fit lasts, and only where they pay."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.model import wide_products as wide
from manyhands.model.torch_internals import DIRECT_PRODUCT
from manyhands.model.wide_products import LEAST, Products, counted_products, wide_products
from tests.conftest import distance, quick_fit

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="wide products are oneDNN's")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN was asked for."""
    found, direct = [], DIRECT_PRODUCT.found

    def counting(left: Tensor, *rest: Any) -> Tensor:
        found.append(tuple(left.shape))
        return direct(left, *rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(DIRECT_PRODUCT, "_found", counting)
    return found


@pytest.fixture
def half_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor whose vectors MKL uses half of."""
    monkeypatch.setattr(wide, "half_width", lambda: True)


def close(found: Tensor, exact: Tensor) -> bool:
    return bool((found - exact).abs().max() < 1e-5 * exact.abs().max())


A, B = torch.randn(200, 130, generator=torch.Generator().manual_seed(0)), torch.randn(130, 160)
LARGE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda a, b: a @ b,
    "by column": lambda a, b: a.t().contiguous().t() @ b.t().contiguous().t(),
    "a part of a larger matrix": lambda a, b: torch.cat([a, a], 1)[:, : a.shape[1]] @ torch.cat([b, b], 1)[:, ::2],
    "one number for all": lambda a, b: a[:1, :1].expand_as(a) @ b[:1, :1].expand_as(b),
    "linear": lambda a, b: nn.functional.linear(a, b.t(), b[0]),
    "linear of a batch of rows": lambda a, b: nn.functional.linear(a.view(4, 50, -1), b.t(), b[0]),
    "bias with gaps": lambda a, b: torch.addmm(torch.stack([b[0], b[1]], 1)[:, 0], a, b),
    "added in place": lambda a, b: torch.ones(200, 160, dtype=a.dtype).addmm_(a, b),
}
OTHERS: dict[str, Callable[[], Tensor]] = {
    "small": lambda: A[:10] @ B,
    "double": lambda: A.double() @ B.double(),
    "whole numbers": lambda: A.long() @ B.long(),
    "scaled": lambda: torch.addmm(B[0], A, B, beta=0.5, alpha=2),
    "scaled in place": lambda: torch.ones(200, 160).addmm_(A, B, alpha=2),
    "a matrix added": lambda: torch.addmm(torch.ones(200, 160), A, B),
    "a column added": lambda: torch.addmm(torch.ones(200, 1), A, B),
    "into a place": lambda: torch.mm(A, B, out=torch.empty(0)),
    "nothing": lambda: A[:0] @ B,
    "sparse": lambda: A.to_sparse() @ B,
    "complex": lambda: A.to(torch.complex64) @ B.to(torch.complex64),
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_products_are_the_products(kind: str, asked: list[tuple[int, ...]]) -> None:
    assert A.shape[0] * A.shape[1] * B.shape[1] >= LEAST
    exact = LARGE[kind](A.double(), B.double())
    with wide_products(True):
        found, again = LARGE[kind](A, B), LARGE[kind](A, B)
    assert asked == [(200, 130)] * 2
    assert close(found, exact)
    assert torch.equal(found, again)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_products_are_torchs_to_the_bit(kind: str, asked: list[tuple[int, ...]]) -> None:
    before = OTHERS[kind]()
    with wide_products(True):
        found = OTHERS[kind]()
    assert asked == []
    assert found.dtype == before.dtype
    assert torch.equal(found, before) if not found.is_sparse else torch.equal(found.to_dense(), before.to_dense())


def test_gradients_are_those_of_the_layer(asked: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    layer, input = nn.Linear(130, 160), A.clone().requires_grad_()
    twin, exact = nn.Linear(130, 160).double(), A.double().requires_grad_()
    twin.load_state_dict(layer.state_dict())
    twin(exact).square().sum().backward()
    with wide_products(True):
        layer(input).square().sum().backward()
    assert len(asked) == 3
    assert exact.grad is not None
    assert input.grad is not None
    assert close(input.grad, exact.grad)
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert other.grad is not None
        assert one.grad is not None
        assert close(one.grad, other.grad)


def test_what_does_not_fit_together_is_answered_as_by_torch() -> None:
    messages = []
    for wanted in (False, True):
        with wide_products(wanted), pytest.raises(RuntimeError) as raised:
            A @ A
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_torchs_kernels_are_back_afterwards_also_where_two_fits_overlap(asked: list[tuple[int, ...]]) -> None:
    first, second = wide_products(True), wide_products(True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    A @ B
    assert len(asked) == 1
    second.__exit__(None, None, None)
    A @ B
    assert len(asked) == 1
    assert not wide.wide_products_in_force()


def test_threads_multiply_at_the_same_time(asked: list[tuple[int, ...]]) -> None:
    exact, found = A.double() @ B.double(), []
    with wide_products(True):
        threads = [threading.Thread(target=lambda: found.append(A @ B)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(asked) == len(found) == 8
    assert all(close(product, exact) for product in found)


def test_large_products_pay_and_small_ones_keep_torchs_kernel() -> None:
    assert Products([LEAST]).pay(2)
    assert not Products([LEAST]).pay(0.5)
    assert not Products([LEAST] + 20 * [100]).pay(1)
    assert not Products().pay(1)


@pytest.mark.usefixtures("half_width")
def test_products_are_counted_and_made_by_torch(asked: list[tuple[int, ...]]) -> None:
    input = A.clone().requires_grad_()
    expected = A @ B
    with counted_products() as products:
        found = input @ B
        found.sum().backward()
    assert products.sizes == [200 * 130 * 160] * 2
    assert torch.equal(found, expected)
    assert asked == []


@pytest.mark.usefixtures("half_width")
def test_nothing_is_counted_where_products_are_chosen_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    with counted_products() as products:
        A @ B
    assert products.sizes == []


def mlp_task(width: int = 512, **changes: Any) -> mh.Task:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 5))

    generator = torch.Generator().manual_seed(0)
    data = torch.randn(96, 64, generator=generator), torch.randint(5, (96,), generator=generator)
    sgd = functools.partial(torch.optim.SGD, lr=0.05)
    return mh.Task(model, data, nn.functional.cross_entropy, sgd, batch_size=64, name="wide", **changes)


@functools.cache
def by_torch() -> mh.Run:
    return quick_fit(mlp_task(), max_steps=3)


@pytest.mark.parametrize(
    "strategy", ["single", "ddp", "fsdp", "data_parallel", "pipeline", "model_parallel", "parameter_server", "locked"]
)
def test_exact_strategies_train_the_same_model_either_way(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "half_width", lambda: False)
    plain = by_torch()
    assert plain.wide_products is False
    monkeypatch.setattr(wide, "half_width", lambda: True)
    run = quick_fit(mlp_task(), strategy, max_steps=3, **({} if strategy == "single" else {"ranks": 2}))
    assert run.wide_products is True
    assert distance(run, plain) < 1e-6


@pytest.mark.usefixtures("half_width")
@pytest.mark.parametrize(
    ("width", "keywords"), [(16, {}), (512, {"precision": "bf16"})], ids=["small layers", "half precision"]
)
def test_other_fits_keep_torchs_kernels(width: int, keywords: dict[str, Any]) -> None:
    assert quick_fit(mlp_task(width), max_steps=2, **keywords).wide_products is False


@pytest.mark.usefixtures("half_width")
def test_a_resumed_run_continues_to_the_bit(tmp_path: Any) -> None:
    whole = quick_fit(mlp_task(epochs=4), max_steps=6)
    quick_fit(mlp_task(epochs=4), max_steps=3, run_dir=tmp_path / "run", checkpoint_every=3)
    resumed = quick_fit(mlp_task(epochs=4), max_steps=6, run_dir=tmp_path / "run", resume=True)
    assert resumed.wide_products
    assert resumed.weights_sha256 == whole.weights_sha256


@pytest.mark.usefixtures("half_width")
def test_an_evaluation_without_a_fit_multiplies_so_too(
    asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`manyhands evaluate` took twice as long as the evaluation of the fit that it repeats."""
    task = mlp_task().replace(test=mlp_task().train)
    weights = task.model().state_dict()  # type: ignore[operator]
    found = mh.evaluate(task, weights)
    assert asked
    del asked[:]
    monkeypatch.setattr(wide, "half_width", lambda: False)
    assert found["loss"] == pytest.approx(mh.evaluate(task, weights)["loss"], rel=1e-5)
    assert asked == []
