"""A few rows times a large matrix, on CPU: a chunk on its way through a linear layer, and its gradient back.

    back, whole        rows @ matrix                 MKL copies the matrix into panels first, in every call anew
    in slices    rows[:,    :128] @ matrix[   :128]
               + rows[:, 128:256] @ matrix[128:256] + ...

Where a row of the matrix fills memory pages exactly (1024 numbers, 2048, ...), what is above each other falls on the same
lines of the cache, and the copying costs up to half as much as the product of 64 rows. A slice of 128 rows of the matrix
stays in the cache while it is copied. One thread, 64 rows, 1024 x 1024, best of 15: 1.8 ms whole, 1.2 ms in slices (Xeon at
2.8 GHz); with two threads slices were slower, 5.2 against 4.0 ms for four such products.
The sum is the same in a fixed order, so it differs from the whole product by rounding and repeats to the last bit.

    forward, packed    copy the weight into panels once a batch, then multiply chunk after chunk by the panels

A packed product of 32 to 192 rows takes about 0.8 of a whole one, from 512 x 512 on; packing costs two to three times what
one product saves. So the first chunk, which the next stage waits for, goes whole, and the others packed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAGE = 4096  # bytes after which addresses fall on the same lines of the cache
SLICE = 128
ROWS = range(32, 193)  # with fewer the calls cost more than they save, with more the copying hardly counts
LEAST = 512  # rows of the matrix
USES = 3  # products that packing is for, at least


def multiply(rows: Tensor, matrix: Tensor) -> Tensor:
    """`rows.matmul(matrix)`, in slices where that is faster."""
    flat = rows.reshape(-1, rows.shape[-1])
    if not slices_pay(flat, matrix):
        return rows.matmul(matrix)
    total = torch.mm(flat[:, :SLICE], matrix[:SLICE])
    for begin in range(SLICE, len(matrix), SLICE):
        total.addmm_(flat[:, begin : begin + SLICE], matrix[begin : begin + SLICE])
    return total.view(*rows.shape[:-1], matrix.shape[1])


def slices_pay(rows: Tensor, matrix: Tensor) -> bool:
    fills_pages = matrix.is_contiguous() and matrix.shape[1] * matrix.element_size() % PAGE == 0
    return fills_pages and len(matrix) >= LEAST and _thin(rows, matrix)


def _thin(rows: Tensor, matrix: Tensor) -> bool:
    plain = rows.dtype == matrix.dtype == torch.float32 and rows.device.type == matrix.device.type == "cpu"
    alone = torch.get_num_threads() == 1  # several threads share out a whole product better than many small ones
    return plain and len(rows) in ROWS and alone and torch.backends.mkl.is_available()


class Panels:
    """The weights of linear layers in MKL's own layout, for the chunks of one batch.

    `begin` forgets them: an update may have changed the weights. Whether a chunk goes packed depends on nothing but its
    place in the batch and its shape, so it is the same wherever the model is cut.
    """

    def __init__(self) -> None:
        self._packed: dict[nn.Linear, tuple[int, Tensor]] = {}  # rows, and the panels for as many
        self._expected: dict[nn.Linear, int] = {}  # rows, as in the batch before
        self._pays = self._packing = False

    def begin(self, chunks: int) -> None:
        self._packed.clear()
        self._pays = chunks > USES

    def enter(self, chunk: int) -> None:
        """The chunk that comes now."""
        self._packing = self._pays and chunk > 0

    def ahead(self) -> bool:
        """Pack one layer that will be wanted, if there is one left; returns whether there was."""
        layer = next((layer for layer in self._expected if layer not in self._packed), None) if self._pays else None
        if layer is None:
            return False
        self._pack(layer, self._expected[layer])
        return True

    def linear(self, layer: nn.Linear, input: Tensor) -> Tensor:
        """The layer's output; no gradients are followed."""
        weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        if not (self._packing and input.dim() == 2 and min(weight.shape) >= LEAST and _thin(input, weight)):
            return F.linear(input, weight, bias)
        rows = self._expected[layer] = len(input)
        if layer not in self._packed or self._packed[layer][0] != rows:
            self._pack(layer, rows)
        return torch.ops.mkl._mkl_linear(input, self._packed[layer][1], weight, bias, rows)

    def _pack(self, layer: nn.Linear, rows: int) -> None:
        self._packed[layer] = rows, torch.ops.mkl._mkl_reorder_linear_weight(layer.weight.detach(), rows)
