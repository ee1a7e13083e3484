"""Products of matrices at the full width of the processor, where torch's own use half of it.

On x86, torch leaves products of matrices to MKL. On processors other than Intel's, MKL works with vectors of 256 bits, even
where the processor has 512. oneDNN, which torch carries for its convolutions, uses all of them:

    a @ b in single precision      torch -> MKL        8 numbers at a time
    within `wide_products`         torch -> oneDNN    16 numbers at a time

On an AMD EPYC of the fifth generation that doubles the speed of linear layers, forward and back (benchmarks/wide_products.py).
What is replaced is torch's kernel below autograd, so any model gains whose products go through it: linear layers, recurrent
cells, projections written by hand. It is replaced in the processes of a fit, and only while it runs.

A call through Python takes some microseconds longer than torch's own. So small products stay with MKL, and a model whose
products are small keeps torch's kernel altogether (`Products.pay`). That is estimated from shapes, not timed: the same model on
the same machine gets the same sums in every run, on every rank and after a resume.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .torch_internals import DIRECT_PRODUCT, OWN_KERNELS

# Of one thread of an AMD EPYC, fifth generation (benchmarks/wide_products.py):
LEAST = 1 << 21  # multiplications from which a product takes less time by oneDNN, its call included
SAVED = 9e-12  # seconds per multiplication
CALL, PASSED_ON = 12e-6, 3e-6  # seconds that a product takes longer to begin: by oneDNN, and one that stays with MKL

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # left, right, and what is added to each row


class _InForce:
    """How many fits of this process multiply so: several threads may each have one."""

    fits = 0


def wide_products_in_force() -> bool:
    return _InForce.fits > 0


@cache
def half_width() -> bool:
    """Whether MKL leaves half of this processor's vector units idle."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return wide and torch.backends.mkl.is_available() and "AuthenticAMD" in _vendor()


def _there() -> bool:
    return DIRECT_PRODUCT.found is not None and OWN_KERNELS.found is not None


def _vendor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next((line for line in lines if line.startswith("vendor_id")), "")
    except OSError:
        return platform.processor()


@contextmanager
def wide_products(wanted: bool) -> Iterator[None]:
    """Within it, large products in single precision are oneDNN's, in this process."""
    if not wanted or not _there():
        yield
        return
    with _kernels(_direct, LEAST):
        _InForce.fits += 1
        try:
            yield
        finally:
            _InForce.fits -= 1


@dataclass
class Products:
    """The products of a pass over a few samples: multiplications of each."""

    sizes: list[int] = field(default_factory=list)

    def pay(self, times: float) -> bool:
        """Whether a pass over so many times as many samples is faster with wide products."""
        large = [size * times for size in self.sizes if size * times >= LEAST]
        return SAVED * sum(large) > CALL * len(large) + PASSED_ON * (len(self.sizes) - len(large))


@contextmanager
def counted_products() -> Iterator[Products]:
    """Counts what wide products would be; nothing where this processor would gain nothing by them."""
    products = Products()
    chosen = torch.get_float32_matmul_precision() != "highest" or not torch.backends.mkldnn.enabled  # by the user
    if chosen or not half_width() or not _there():
        yield products
        return

    def count(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
        products.sizes.append(left.numel() * right.shape[1])
        return _as_before(left, right, bias)

    with _kernels(count, 1):
        yield products


# ---------------------------------------------------------------- torch's kernels


@contextmanager
def _kernels(product: Product, least: int) -> Iterator[None]:
    """Products of at least so many multiplications are made by `product`, all others as before."""

    def fits(left: Tensor, right: Tensor) -> bool:
        if left.dtype != torch.float32 or right.dtype != torch.float32 or left.dim() != 2 or right.dim() != 2:
            return False
        (rows, inner), (height, width) = left.shape, right.shape
        return inner == height and rows * inner * width >= least

    def mm(left: Tensor, right: Tensor) -> Tensor:
        return product(left, right, None) if fits(left, right) else _as_before(left, right, None)

    def addmm(added: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        plain = beta == 1 and alpha == 1 and added.dtype == torch.float32
        if plain and added.dim() == 1 and fits(left, right) and added.shape[0] == right.shape[1]:
            return product(left, right, added)
        return torch.addmm(added, left, right, beta=beta, alpha=alpha, out=left.new_empty(0))

    def addmm_(added: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        plain = beta == 1 and alpha == 1 and added.dtype == torch.float32
        if plain and fits(left, right):
            return added.add_(product(left, right, None))
        return added.copy_(torch.addmm(added, left, right, beta=beta, alpha=alpha, out=left.new_empty(0)))

    take_back = OWN_KERNELS.found({"mm": mm, "addmm": addmm, "addmm_": addmm_})
    try:
        yield
    finally:
        take_back()


def _as_before(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """torch's own kernel, which is still there for products with a given place."""
    out = left.new_empty(0)
    return torch.mm(left, right, out=out) if bias is None else torch.addmm(bias, left, right, out=out)


def _direct(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    added = None if bias is None else bias.contiguous()  # oneDNN does not look at its strides
    product: Tensor = DIRECT_PRODUCT.found(_dense(left), _dense(right).t(), added, "none", [], "")
    return product


def _dense(matrix: Tensor) -> Tensor:
    """By row or by column; anything else (one number that stands for all gradients, say) is copied."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()
