"""Products in slices and of packed weights are the products, and are taken only where they pay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from manyhands.model.thin_products import Panels, multiply, slices_pay


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


def through(panels: Panels, layer: nn.Linear, *chunks: torch.Tensor) -> list[torch.Tensor]:
    panels.begin(len(chunks))
    outputs = []
    for number, chunk in enumerate(chunks):
        panels.enter(number)
        with torch.no_grad():
            outputs.append(panels.linear(layer, chunk))
    return outputs


@needs_mkl
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_are_the_products(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, panels, packed = nn.Linear(600, 512, bias=bias), Panels(), []
    pack = panels._pack
    monkeypatch.setattr(panels, "_pack", lambda layer, rows: (packed.append(rows), pack(layer, rows)))
    chunks = [torch.randn(rows, 600) for rows in (40, 40, 40, 40, 39)]
    for _ in range(2):
        for chunk, output in zip(chunks, through(panels, layer, *chunks), strict=True):
            exact = layer.double()(chunk.double())
            layer.float()
            assert (output - exact).abs().max() < 1e-5 * exact.abs().max()
        with torch.no_grad():
            layer.weight.add_(1)  # an update: what was packed before is of no use
    assert packed == [40, 39, 40, 39]  # the first chunk goes whole, a short one has panels of its own


@needs_mkl
def test_panels_are_made_ahead_only_where_they_will_be_wanted() -> None:
    layer, panels = nn.Linear(512, 512), Panels()
    chunks = [torch.randn(32, 512) for _ in range(4)]
    panels.begin(4)
    assert not panels.ahead()  # nothing has passed yet
    first = through(panels, layer, *chunks)
    panels.begin(4)
    assert [panels.ahead(), panels.ahead()] == [True, False]
    panels.enter(1)
    with torch.no_grad():
        assert torch.equal(panels.linear(layer, chunks[1]), first[1])
    panels.begin(3)
    assert not panels.ahead()  # too few chunks to pay for it


@pytest.mark.parametrize(("rows", "width", "chunks"), [(16, 512, 4), (64, 256, 4), (64, 512, 3)])
def test_other_chunks_meet_the_weight_as_it_is(rows: int, width: int, chunks: int) -> None:
    layer, panels = nn.Linear(512, width), Panels()
    inputs = [torch.randn(rows, 512) for _ in range(chunks)]
    with torch.no_grad():
        for input, output in zip(inputs, through(panels, layer, *inputs), strict=True):
            assert torch.equal(output, layer(input))
    assert not panels._packed
