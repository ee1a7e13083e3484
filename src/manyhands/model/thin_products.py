"""A few rows times a large matrix, on CPU: a chunk on its way through a linear layer, and its gradient back.

Both products read the whole weight, whatever the rows, and MKL, which torch asks, first copies it into panels: in every
call anew, and for 64 rows that takes up to half as long as the product itself.

    forward, direct     rows @ weight.T           by oneDNN, which multiplies by a large weight where it lies
    back, whole         rows @ weight             the copy is at its worst where a row of the weight fills memory pages
    back, in slices   rows[:,    :128] @ weight[   :128]        exactly (1024 numbers, 2048, ...): what is above each
                    + rows[:, 128:256] @ weight[128:256] + ...  other falls on the same lines of the cache; a slice of
                                                                128 rows stays in the cache while it is copied

Of the whole product's time, on one thread of a Xeon at 2.8 GHz and from 1024 x 1024 on: direct 0.8 to 1.0, in slices 0.6
to 0.9 (benchmarks/thin_products.py). Packing weights once a batch cost more than the chunks of a batch saved.
The sums are in a fixed order, so they differ from the whole products by rounding and repeat to the last bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .torch_internals import DIRECT_PRODUCT
from .wide_products import wide_products_in_force

PAGE = 4096  # bytes after which addresses fall on the same lines of the cache
SLICE = 128
SLICED_ROWS = range(32, 160)  # with fewer the calls cost more than they save, with more the copying hardly counts
SLICED_LEAST = 512  # rows of the matrix
DIRECT_ROWS = range(8, 193)
DIRECT_LEAST = 1 << 20  # numbers in the weight: smaller ones stay in the cache while they are copied
_NOTHING = torch.zeros(1)  # what a sum of products begins with


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`, without gradients and directly where that is faster."""
    if not (rows.dim() == 2 and direct_pays(rows, weight)):
        return F.linear(rows, weight, bias)
    return DIRECT_PRODUCT.found(rows, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def direct_pays(rows: Tensor, weight: Tensor) -> bool:
    large = weight.is_contiguous() and weight.numel() >= DIRECT_LEAST
    there = DIRECT_PRODUCT.found is not None and torch.backends.mkldnn.is_available()
    return there and large and rows.shape[0] in DIRECT_ROWS and _plain(rows, weight)


def multiply(rows: Tensor, matrix: Tensor) -> Tensor:
    """`rows.matmul(matrix)`, in slices where that is faster."""
    flat = rows if rows.dim() == 2 else rows.reshape(-1, rows.shape[-1])
    if not slices_pay(flat, matrix):
        return rows.matmul(matrix)
    product = _in_slices(flat, matrix)
    return product if flat is rows else product.view(*rows.shape[:-1], -1)


def _in_slices(rows: Tensor, matrix: Tensor) -> Tensor:
    """One call for all slices: from Python each would pay for a call of its own."""
    (count, inner), width = rows.shape, matrix.shape[1]
    slices, rest = divmod(inner, SLICE)
    if rest:
        product = _in_slices(rows[:, :-rest], matrix[:-rest])
        return product.addmm_(rows[:, -rest:], matrix[-rest:])
    sliced, matrices = rows.view(count, slices, SLICE).transpose(0, 1), matrix.view(slices, SLICE, width)
    return torch.addbmm(_NOTHING, sliced, matrices, beta=0)


def slices_pay(rows: Tensor, matrix: Tensor) -> bool:
    height, width = matrix.shape
    fills_pages = matrix.is_contiguous() and width * matrix.element_size() % PAGE == 0
    return fills_pages and height >= SLICED_LEAST and rows.shape[0] in SLICED_ROWS and _plain(rows, matrix)


def _plain(rows: Tensor, matrix: Tensor) -> bool:
    """Single precision by MKL on one thread: several share out a whole product better."""
    if wide_products_in_force():
        return False
    plain = rows.dtype == matrix.dtype == torch.float32 and rows.is_cpu and matrix.is_cpu
    return plain and torch.get_num_threads() == 1 and torch.backends.mkl.is_available()
