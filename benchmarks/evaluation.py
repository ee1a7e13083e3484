"""Claim: evaluating MobileNetV2 on 10,000 images of CIFAR-10's shape costs what its forward pass costs (one H200).

Ours computes in fp32, whatever a training computes in, so that `mh.evaluate` and the record agree: the loop to compare with
is the hand-written one in fp32. The first evaluation of a fit runs batch by batch ("eager"), the others are replays of a
recorded batch ("captured"). The plain loop is what most scripts do: batches from the host, and a look at the loss of each.
Images are random numbers: speed does not depend on what they show. `fit` is the mean over the evaluations of a bf16 training,
with the first, eager one and the making of the recording.

    python benchmarks/evaluation.py [--rounds 3] [--batches 128 1024] [--images 10000] [--device cuda] [--no-fit] [--profile]
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

import manyhands as mh
from manyhands.model.layout import lay_channels_last
from manyhands.strategies.job import StepSettings
from manyhands.tasks import cifar10
from manyhands.tasks.models import mobilenetv2
from manyhands.training.build import build
from manyhands.training.evaluation import Evaluation

Side = Callable[[], dict[str, Any]]


def data(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return x, torch.randint(10, (count,), generator=generator)


def task_of(images: int, batch: int) -> mh.Task:
    return mh.Task(
        mobilenetv2, data(10 * batch), F.cross_entropy, cifar10.task.optimizer,
        test=data(images), batch_size=batch, name="mobilenetv2",
    )  # fmt: skip


def made(device: torch.device, last: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = mobilenetv2().eval().to(device)
    return lay_channels_last(model) if last else model


def ours(images: int, batch: int, device: torch.device, capture: str, last: bool = False) -> Side:
    job = build(task_of(images, batch), StepSettings(capture=capture))
    evaluation = Evaluation(job, made(device, last), job.test, device)  # type: ignore[arg-type]
    weights = {name: value.cpu() for name, value in evaluation.model.state_dict().items()}

    def side() -> dict[str, Any]:
        evaluation.model.load_state_dict(weights)  # as at the end of every epoch
        found = evaluation.figures()
        return {**found, "replayed": evaluation.recorded is not None}

    return side


def plain_loop(images: int, batch: int, device: torch.device) -> Side:
    x, y = data(images)
    model = made(device)

    @torch.no_grad()
    def side() -> dict[str, Any]:
        loss, right = 0.0, 0
        for images, goal in zip(x.split(batch), y.split(batch), strict=True):
            output, target = model(images.to(device)), goal.to(device)
            loss += F.cross_entropy(output, target).item() * len(goal)
            right += int((output.argmax(1) == target).sum())
        return {"loss": loss / len(x), "accuracy": right / len(x)}

    return side


def by_hand(
    model: nn.Module, images: int, batch: int, device: torch.device, bf16: bool = False, last: bool = False
) -> Side:
    """As fast as one writes it: everything on the device, one look at the sums."""
    x, y = (part.to(device) for part in data(images))

    @torch.no_grad()
    def side() -> dict[str, Any]:
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        for images, goal in zip(x.split(batch), y.split(batch), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                output = model(images.contiguous(memory_format=torch.channels_last) if last else images)
            sums[0] += F.cross_entropy(output.float(), goal, reduction="sum")
            sums[1] += (output.argmax(1) == goal).sum()
        loss, right = (sums / len(x)).tolist()
        return {"loss": loss, "accuracy": right}

    return side


def without_cudnn(model: nn.Module) -> nn.Module:
    """BatchNorm by torch's own kernel: cuDNN's takes half of the pass in NCHW."""

    def forward(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        numbers = norm.weight, norm.bias, norm.running_mean, norm.running_var
        return torch.native_batch_norm(x, *numbers, False, 0.0, norm.eps)[0]

    for norm in [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]:
        norm.forward = functools.partial(forward, norm)  # type: ignore[method-assign]
    return model


def sides(images: int, batches: list[int], device: torch.device) -> dict[tuple[str, int], Side]:
    """Each channels_last side takes cuDNN seconds to begin: those stand here for one batch size alone."""
    found: dict[tuple[str, int], Side] = {}
    small, large = min(batches), max(batches)
    for batch in batches:
        found |= {
            ("manyhands, eager", batch): ours(images, batch, device, "off"),
            ("manyhands, captured", batch): ours(images, batch, device, "auto"),
            ("by hand, fp32", batch): by_hand(made(device), images, batch, device),
            ("by hand, native BatchNorm", batch): by_hand(without_cudnn(made(device)), images, batch, device),
        }
    last = made(device, last=True)
    return found | {
        ("plain loop, fp32", small): plain_loop(images, small, device),
        ("captured, channels_last", small): ours(images, small, device, "auto", last=True),
        ("by hand, fp32 channels_last", large): by_hand(last, images, large, device, last=True),
        ("by hand, bf16 channels_last", large): by_hand(last, images, large, device, bf16=True, last=True),
    }


def seconds(side: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    side()  # all of them end with a look at the sums
    return time.perf_counter() - began


def in_a_fit(images: int, batch: int, device: torch.device, epochs: int = 10) -> dict[str, Any]:
    """Seconds of an evaluation in a training, the first and the recording among them."""
    began = time.perf_counter()
    run = mh.fit(
        task_of(images, batch), "single", epochs=epochs, device=device.type, precision="bf16", progress=False
    )  # fmt: skip
    wall = time.perf_counter() - began
    again = mh.evaluate(task_of(images, batch), run.weights, device=device)  # type: ignore[arg-type]
    return {
        "batch": batch,
        "evaluation": (run.evaluation_seconds or 0) / epochs,
        "training": (run.seconds or 0) / epochs,
        "pause": (run.pause_seconds or 0) / epochs,
        "wall": wall,
        "loss": run.test["loss"],  # type: ignore[index]
        "of mh.evaluate": again["loss"],
        "accuracy": run.test["accuracy"],  # type: ignore[index]
        "of it": again["accuracy"],
    }


def profile(side: Side, title: str, device: torch.device, rows: int = 14) -> None:
    """Where one evaluation's time goes: on the device by kernel, on the host by operation."""
    on = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        on.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=on) as profiler:
        took = seconds(side, device)
    events = profiler.key_averages()
    for place, of in (("device", "self_device_time_total"), ("host", "self_cpu_time_total")):
        times = sorted(((getattr(event, of), event.count, event.key) for event in events), reverse=True)
        print(f"\n{title}, profiled in {took:.3f} s: {sum(t for t, _, _ in times) / 1e6:.3f} s on the {place}")
        for time_us, count, key in times[:rows]:
            print(f"  {time_us / 1e3:8.2f} ms {count:6d} x {key[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-fit", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    every = sides(options.images, options.batches, device)
    began = {name: [seconds(side, device) for _ in range(2)] for name, side in every.items()}  # the second one records
    times: dict[tuple[str, int], list[float]] = {name: [] for name in every}
    for _ in range(options.rounds):
        for name, side in every.items():
            times[name].append(seconds(side, device))
    rows = []
    for (name, batch), values in times.items():
        found = every[name, batch]()
        rows.append(
            {
                "side": name,
                "batch": batch,
                "first s": began[name, batch][0],
                "second": began[name, batch][1],
                "median s": statistics.median(values),
                "lowest": min(values),
                "highest": max(values),
                "loss": f"{found['loss']:.6f}",
                "right": f"{found['accuracy']:.4f}",
                "replayed": found.get("replayed", ""),
            }
        )
    show(f"Seconds to evaluate MobileNetV2 on {options.images} images of 32x32", rows, rounds=options.rounds)
    if not options.no_fit:
        show(
            "Seconds per epoch in a bf16 fit of 10 epochs of 10 steps, and its last figures twice",
            [in_a_fit(options.images, min(options.batches), device)],
        )
    if options.profile:
        for name in ("manyhands, eager", "manyhands, captured"):
            profile(every[name, min(options.batches)], f"{name}, batch {min(options.batches)}", device)


if __name__ == "__main__":
    main()
