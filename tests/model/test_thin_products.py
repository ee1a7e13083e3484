"""Products in slices are the products, and are taken only where they pay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from manyhands.model.thin_products import multiply, slices_pay


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="slices pay with MKL alone")


@needs_mkl
@pytest.mark.parametrize("rows", [(64,), (3, 20), (2, 4, 5)])
@pytest.mark.parametrize("inner", [512, 600])
def test_slices_add_up_to_the_product(rows: tuple[int, ...], inner: int) -> None:
    torch.manual_seed(0)
    left, matrix = torch.randn(*rows, inner), torch.randn(inner, 1024)
    assert slices_pay(left.reshape(-1, inner), matrix)
    found = multiply(left, matrix)
    assert found.shape == (*rows, 1024)
    exact = left.double() @ matrix.double()
    assert (found - exact).abs().max() < 1e-5 * exact.abs().max()
    assert torch.equal(found, multiply(left, matrix))


@pytest.mark.parametrize(
    ("rows", "inner", "width", "dtype"),
    [
        (31, 512, 1024, torch.float32),
        (193, 512, 1024, torch.float32),
        (64, 511, 1024, torch.float32),
        (64, 512, 1000, torch.float32),
        (64, 512, 1024, torch.float64),
    ],
)
def test_other_products_stay_whole(rows: int, inner: int, width: int, dtype: torch.dtype) -> None:
    left, matrix = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, width, dtype=dtype)
    assert not slices_pay(left, matrix)
    assert torch.equal(multiply(left, matrix), left @ matrix)


def test_without_mkl_of_a_view_and_with_several_threads_they_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    left, matrix = torch.randn(64, 1024), torch.randn(1024, 1024)
    assert not slices_pay(left, matrix.t())
    torch.set_num_threads(2)
    assert not slices_pay(left, matrix)
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not slices_pay(left, matrix)
    assert torch.equal(multiply(left, matrix), left @ matrix)
