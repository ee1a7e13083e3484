"""A few rows times a large matrix, on CPU: the product that hands the gradient of a chunk on through a linear layer.

    whole        rows @ matrix                 MKL copies the matrix into panels first, in every call anew
    in slices    rows[:,    :128] @ matrix[   :128]
               + rows[:, 128:256] @ matrix[128:256] + ...

Where a row of the matrix fills memory pages exactly (1024 numbers, 2048, ...), what is above each other falls on the same
lines of the cache, and the copying costs up to half as much as the product of 64 rows. A slice of 128 rows of the matrix
stays in the cache while it is copied. One thread, 64 rows, 1024 x 1024, best of 15: 1.8 ms whole, 1.2 ms in slices (Xeon at
2.8 GHz); with two threads slices were slower, 5.2 against 4.0 ms for four such products.
The sum is the same in a fixed order, so it differs from the whole product by rounding and repeats to the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

PAGE = 4096  # bytes after which addresses fall on the same lines of the cache
SLICE = 128
ROWS = range(32, 193)  # with fewer the calls cost more than they save, with more the copying hardly counts
LEAST = 512  # rows of the matrix


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
    plain = rows.dtype == matrix.dtype == torch.float32 and rows.device.type == matrix.device.type == "cpu"
    alone = torch.get_num_threads() == 1  # several threads share out a whole product better than many small ones
    fits = len(rows) in ROWS and len(matrix) >= LEAST
    return plain and fills_pages and fits and alone and torch.backends.mkl.is_available()
