"""What goes into an operation: flat tensors, checked as torch's own backends check theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...errors import BadInput
from .work import Steps

Strided = list[tuple[Tensor, Tensor]]


def flatten(tensors: Iterable[Tensor]) -> tuple[list[Tensor], Strided]:
    """One-dimensional views; of tensors that have none, flat copies, which are also listed with their tensors."""
    flats: list[Tensor] = []
    strided: Strided = []
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout != torch.strided:
            raise BadInput(f"manyhands_shm carries dense CPU tensors; found one on {tensor.device}, {tensor.layout}")
        tensor = tensor.detach()  # autograd does not record what ranks tell each other
        if tensor.is_contiguous():
            flats.append(tensor if tensor.dim() == 1 else tensor.view(-1))
        else:
            flats.append(tensor.contiguous().view(-1))
            strided.append((tensor, flats[-1]))
    return flats, strided


def returning(steps: Steps, strided: Strided) -> Steps:
    """The steps, and then what came goes back into the tensors that had to be copied to be flat."""
    return _and_copy(steps, strided) if strided else steps


def _and_copy(steps: Steps, strided: Strided) -> Steps:
    yield from steps
    for tensor, flat in strided:
        tensor.copy_(flat.view(tensor.shape))


def in_turn(several: Iterable[Steps]) -> Steps:
    for steps in several:
        yield from steps


def check_list(name: str, tensors: Sequence[Tensor], like: Tensor, ranks: int, alike: Sequence[int]) -> None:
    """One tensor for each rank, all of `like`'s dtype; those of the ranks in `alike` of its size, too."""
    fits = len(tensors) == ranks and all(tensor.dtype == like.dtype for tensor in tensors)
    if not fits or any(tensors[rank].numel() != like.numel() for rank in alike):
        found = ", ".join(f"{tensor.numel()} {tensor.dtype}" for tensor in tensors) or "none"
        raise BadInput(
            f"{name} over {ranks} ranks needs a list of {ranks} tensors that go with one of {like.numel()} {like.dtype}; "
            f"found {found}"
        )


def check_whole(name: str, whole: Tensor, part: Tensor, ranks: int) -> None:
    """One tensor that holds every rank's part."""
    if whole.numel() != ranks * part.numel() or whole.dtype != part.dtype:
        raise BadInput(
            f"{name} over {ranks} ranks needs a tensor of {ranks} x {part.numel()} {part.dtype}; "
            f"found {whole.numel()} {whole.dtype}"
        )


def split_rows(side: str, tensor: Tensor, flat: Tensor, rows_for_each: Sequence[int], ranks: int) -> list[Tensor]:
    """The flat tensor cut into every rank's rows (none given: equally many)."""
    rows = tensor.shape[0] if tensor.dim() else 0
    sizes = list(rows_for_each) or [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise BadInput(f"all_to_all cannot cut the {rows} rows of its {side} into {sizes} for {ranks} ranks")
    width = flat.numel() // rows if rows else 0
    return list(torch.split(flat, [size * width for size in sizes]))
