"""A loop of Accelerate's: prepare, backward, gather for the test."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(160, 20), torch.randint(3, (160,))
train, test = (DataLoader(TensorDataset(inputs, targets), 16, shuffle=shuffle) for shuffle in (True, False))
model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
for _ in range(2):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(accelerator.gather_for_metrics(model(x).argmax(1) == y).sum().item() for x, y in test)
    accelerator.print(f"accuracy {right / 160:.2f}")
accelerator.end_training()
