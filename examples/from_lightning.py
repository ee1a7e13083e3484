"""A Lightning module as it is: manyhands train examples/from_lightning.py ddp --ranks 2"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import manyhands as mh


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
task = mh.from_lightning(Regression, train=DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=40))
