"""A Lightning module with its data module, both as they are (examples/bring/lightning_module.py)."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import manyhands as mh


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.body(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_accuracy", (self.body(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Points(L.LightningDataModule):
    def setup(self, stage):
        points = torch.randn(512, 20, generator=torch.Generator().manual_seed(0))
        self.data = TensorDataset(points, points[:, :4].argmax(1))

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=64)


task = mh.from_lightning(Classifier, Points())
