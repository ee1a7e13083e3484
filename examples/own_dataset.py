"""Any map-style Dataset trains as it is: samples made one by one, inputs that are dicts, a collate function of its own.

Each sample is a handful of numbers, of which the model learns the sum; batches pad them to the longest.

    manyhands train examples/own_dataset.py ddp --ranks 2 --loader-workers 1
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import manyhands as mh


class Handfuls(Dataset):
    def __init__(self, count: int, seed: int):
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chance = torch.Generator().manual_seed(self.seed + index)
        size = int(torch.randint(1, 9, (), generator=chance))
        numbers = torch.rand(size, generator=chance)
        return numbers, numbers.sum()


def padded(samples: list[tuple[Tensor, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    numbers, sums = zip(*samples, strict=True)
    sizes = torch.tensor([len(some) for some in numbers])
    return {"numbers": nn.utils.rnn.pad_sequence(numbers, batch_first=True), "sizes": sizes}, torch.stack(sums)


class Adder(nn.Module):
    """A small network looks at every number, what it finds is added up."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, input: dict[str, Tensor]) -> Tensor:
        numbers, sizes = input["numbers"], input["sizes"]
        present = torch.arange(numbers.shape[1], device=numbers.device) < sizes[:, None]
        return (self.look(numbers[..., None])[..., 0] * present).sum(1)


def mean_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().mean()


task = mh.Task(
    model=Adder,
    train=Handfuls(4_000, seed=0),
    test=Handfuls(500, seed=1_000_000),
    collate=padded,
    loss=nn.functional.mse_loss,
    metrics={"mean_error": mean_error},
    optimizer=partial(torch.optim.Adam, lr=3e-3),
    batch_size=50,
    epochs=2,
)
