"""The other sides of the GPU benchmarks: a plain loop, Accelerate, Fabric and Lightning, training the same thing.

Each takes a model, an optimizer and an iterable of (input, target) batches, and returns steps per second. Losses are
kept on the device and read at the end, so no side waits for the device in a step.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

Optimizing = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
DEVICE = torch.device("cuda")


def plain_loop(model: nn.Module, make: Optimizing, loss_of: Any, batches: Iterable[Any], bf16: bool = False) -> float:
    model = model.to(DEVICE).train()
    if bf16:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make(model.parameters())
    losses = []
    for number, (x, y) in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
            began = time.perf_counter()
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16) if bf16 else nullcontext():
            loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return _rate(losses, began)


WARM_UP = 10  # steps that do not count: the first ones choose kernels


def with_accelerate(model: nn.Module, make: Optimizing, loss_of: Any, batches: Iterable[Any]) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(model, make(model.parameters()))
    model.train()
    losses = []
    for number, (x, y) in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
            began = time.perf_counter()
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return _rate(losses, began)


def with_fabric(model: nn.Module, make: Optimizing, loss_of: Any, batches: Iterable[Any]) -> float:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cuda", devices=1)
    model, optimizer = fabric.setup(model, make(model.parameters()))
    model.train()
    losses = []
    for number, (x, y) in enumerate(batches):
        if number == WARM_UP:
            torch.cuda.synchronize()
            began = time.perf_counter()
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return _rate(losses, began)


def with_lightning(model: nn.Module, make: Optimizing, loss_of: Any, batches: Iterable[Any]) -> float:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.steps = model, 0

        def training_step(self, batch: Any, number: int) -> Tensor:
            if number == WARM_UP:
                torch.cuda.synchronize()
                self.began = time.perf_counter()
            self.steps += 1
            x, y = batch
            return loss_of(self.net(x), y)

        def on_train_epoch_end(self) -> None:
            torch.cuda.synchronize()
            self.ended = time.perf_counter()

        def configure_optimizers(self) -> Any:
            return make(self.parameters())

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cuda",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, batches)
    return (module.steps - WARM_UP) / (module.ended - module.began)


def installed() -> dict[str, Callable[..., float]]:
    """The peers that are here."""
    found: dict[str, Callable[..., float]] = {}
    if importlib.util.find_spec("accelerate"):
        found["Accelerate"] = with_accelerate
    if importlib.util.find_spec("lightning"):
        found["Fabric"] = with_fabric
        found["Lightning Trainer"] = with_lightning
    return found


def _rate(losses: list[Tensor], began: float) -> float:
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    assert torch.isfinite(torch.stack(losses)).all()
    return (len(losses) - WARM_UP) / seconds
