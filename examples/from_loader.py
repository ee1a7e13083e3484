"""What a plain script has at hand: manyhands train examples/from_loader.py ddp --ranks 2"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import manyhands as mh

x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=40, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
task = mh.from_loader(model, loader, torch.nn.CrossEntropyLoss(), optimizer, schedule=schedule, epochs=4)
