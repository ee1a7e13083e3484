"""Products in slices and by oneDNN are the products, and are taken only where they pay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from manyhands.model.thin_products import direct_pays, linear, multiply, slices_pay
from manyhands.model.torch_internals import DIRECT_PRODUCT

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
        (160, 512, 1024, torch.float32),
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


needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="direct is by oneDNN")


@needs_mkl
@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [8, 63, 192])
def test_direct_products_are_the_products(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer, input = nn.Linear(1200, 1024, bias=bias), torch.randn(rows, 1200)
    assert direct_pays(input, layer.weight)
    with torch.no_grad():
        found = linear(input, layer.weight, layer.bias)
        assert torch.equal(found, linear(input, layer.weight, layer.bias))
        exact = layer.double()(input.double())
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize(
    ("rows", "width", "dtype"),
    [(7, 1024, torch.float32), (193, 1024, torch.float32), (64, 1023, torch.float32), (64, 1024, torch.float64)],
)
def test_other_layers_are_torchs(rows: int, width: int, dtype: torch.dtype) -> None:
    layer, input = nn.Linear(1024, width, dtype=dtype), torch.randn(rows, 1024, dtype=dtype)
    assert not direct_pays(input, layer.weight)
    with torch.no_grad():
        assert torch.equal(linear(input, layer.weight, layer.bias), layer(input))


def test_without_either_library_of_a_view_and_with_several_threads_layers_are_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, weight = torch.randn(64, 1024), torch.randn(1024, 1024)
    assert not direct_pays(rows, weight.t())
    torch.set_num_threads(2)
    assert not direct_pays(rows, weight)
    torch.set_num_threads(1)
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        with monkeypatch.context() as patch:
            patch.setattr(library, "is_available", lambda: False)
            assert not direct_pays(rows, weight)
            assert torch.equal(linear(rows, weight, None), rows @ weight.t())


def test_in_a_torch_without_the_direct_product_layers_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is not a public one."""
    monkeypatch.setattr(DIRECT_PRODUCT, "_looked", True)
    monkeypatch.setattr(DIRECT_PRODUCT, "_found", None)
    rows, weight = torch.randn(64, 1024), torch.randn(1024, 1024)
    assert torch.equal(linear(rows, weight, None), rows @ weight.t())


def test_rows_of_rows_are_torchs() -> None:
    """A direct product takes a plain list of rows alone."""
    layer, input = nn.Linear(1024, 1024), torch.randn(4, 16, 1024)
    with torch.no_grad():
        assert torch.equal(linear(input, layer.weight, layer.bias), layer(input))
