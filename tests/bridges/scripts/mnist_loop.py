"""A plain loop over ten digits, as PyTorch's MNIST example has it: argparse, train, test, a schedule, DDP where asked."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(400, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def digits(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(10, (samples,), generator=generator)
    images = torch.rand(samples, 1, 28, 28, generator=generator) + target.view(-1, 1, 1, 1) / 10
    return TensorDataset(images, target)


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for number, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if number % args.log_interval == 0:
            print(f"Train epoch {epoch} [{number}/{len(loader)}] loss {loss.item():.6f}")


def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data.to(device)).argmax(dim=1) == target.to(device)).sum().item()
    print(f"Test accuracy {correct / len(loader.dataset):.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1280)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    model, sampler = Net().to(device), None
    data = digits(args.samples, 0)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None, num_workers=args.workers)
    held_out = DataLoader(digits(640, 1), 640)
    optimizer = optim.Adadelta(model.parameters(), lr=0.5)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, loader, optimizer, epoch)
        test(model, device, held_out)
        scheduler.step()
    if args.save and os.environ.get("RANK", "0") == "0":
        torch.save(model.state_dict(), args.save)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
