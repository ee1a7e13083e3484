"""Claim: the phases that `manyhands run` reports for loops of four kinds are those of a stopwatch inside the same loops.

A plain loop, Accelerate, the Hugging Face Trainer and Lightning train the same perceptron on the same data, on 1 and 2
ranks. Each keeps its own times around its own lines, or where a library has the loop, in the methods it lets one override;
`manyhands run` measures the same steps from outside. A stopwatch cannot see DDP's sums inside backward, so backward and
communication are compared as one.

    python benchmarks/script_phases.py [--rounds 3] [--steps 100]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from tables import show

BATCH, WIDTH = 128, 2048
LOOPS = ("plain", "accelerate", "trainer", "lightning")
PHASES = ("load", "forward", "backward", "update")


class Watch:
    """Seconds under each name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def around(self, name: str, function: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timed


class Noisy(TensorDataset):
    """Samples that take some work each, as those of people do."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        x, y = super().__getitem__(index)
        return (x + 0.1 * torch.randn_like(x)).clamp(-3, 3), y


def model_and_data(steps: int, ranks: int) -> tuple[nn.Module, Noisy]:
    torch.manual_seed(0)
    samples = steps * BATCH * ranks
    model = nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    return model, Noisy(torch.randn(samples, 256), torch.randint(10, (samples,)))


def make_optimizer(model: nn.Module, watch: Watch) -> torch.optim.Optimizer:
    """Timed where a library calls it; a library that computes the loss inside of it (a closure) is taken off again."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = watch.around("update", optimizer.step)

    def timed(*args: Any, **kwargs: Any) -> Any:
        before = watch.seconds["forward"] + watch.seconds["backward"]
        result = step(*args, **kwargs)
        watch.seconds["update"] -= watch.seconds["forward"] + watch.seconds["backward"] - before
        return result

    optimizer.step = timed  # type: ignore[method-assign]
    return optimizer


def plain(watch: Watch, steps: int, ranks: int) -> None:
    model, data = model_and_data(steps, ranks)
    sampler = None
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = torch.utils.data.DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler)
    optimizer = make_optimizer(model, watch)
    fetch = watch.around("load", iter(loader).__next__)
    for _ in range(steps):
        batch = fetch()
        x, y = batch
        optimizer.zero_grad()
        loss = watch.around("forward", lambda x, y: F.cross_entropy(model(x), y))(x, y)
        watch.around("backward", loss.backward)()
        optimizer.step()
    if ranks > 1:
        torch.distributed.destroy_process_group()


def accelerate(watch: Watch, steps: int, ranks: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, data = model_and_data(steps, ranks)
    optimizer = make_optimizer(model, watch)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, BATCH))
    batches = iter(loader)
    fetch = watch.around("load", lambda: next(batches))
    for _ in range(steps):
        x, y = fetch()
        optimizer.zero_grad()
        loss = watch.around("forward", lambda x, y: F.cross_entropy(model(x), y))(x, y)
        watch.around("backward", accelerator.backward)(loss)
        optimizer.step()
    accelerator.end_training()


def trainer(watch: Watch, steps: int, ranks: int) -> None:
    from transformers import Trainer, TrainingArguments

    net, data = model_and_data(steps, ranks)

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": F.cross_entropy(self.net(x), labels)}

    class Timed(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return watch.around("forward", super().compute_loss)(*args, **kwargs)

        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            return watch.around("load", super().get_batch_samples)(*args, **kwargs)

        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.accelerator.backward = watch.around("backward", self.accelerator.backward)

    with tempfile.TemporaryDirectory() as folder:
        told = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, max_steps=steps, use_cpu=True, report_to=[], max_grad_norm=0.0,
            logging_strategy="no", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        rows = [{"x": x, "labels": y} for x, y in data]
        optimizer = make_optimizer(net, watch)
        job = Timed(Named(), told, train_dataset=rows, optimizers=(optimizer, None))
        job.train()


def lightning(watch: Watch, steps: int, ranks: int) -> None:
    import lightning

    net, data = model_and_data(steps, ranks)

    class Timed(DataLoader):
        def __iter__(self) -> Any:
            batches = super().__iter__()
            fetch = watch.around("load", batches.__next__)
            for _ in range(len(self)):
                yield fetch()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Any:
            return watch.around("forward", lambda: F.cross_entropy(self.net(batch[0]), batch[1]))()

        def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
            watch.around("backward", super().backward)(loss, *args, **kwargs)

        def configure_optimizers(self) -> Any:
            return make_optimizer(self, watch)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    strategy = "ddp" if ranks > 1 else "auto"
    job = lightning.Trainer(accelerator="cpu", devices=ranks, strategy=strategy, max_steps=steps, **quiet)
    job.fit(Module(), Timed(data, BATCH))


def measured(loop: str, ranks: int, steps: int, folder: str) -> dict[str, float]:
    """What manyhands says of each phase, as a share of what the stopwatch of rank 0 says."""
    script = [str(Path(__file__).resolve()), "--loop", loop, "--steps", str(steps), "--told", f"{folder}/told"]
    words = ["run", "--quiet", "--ranks", str(ranks), "--run-dir", f"{folder}/run", *script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "manyhands", *words]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = json.loads(Path(folder, "told").read_text())
    seen = json.loads(Path(folder, "run", "run.json").read_text())["per_rank"][0]["phases_ms"]
    seen["backward"] += seen["communication"] or 0.0
    return {name: seen[name] / told[name] for name in PHASES}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--loop", default="")
    parser.add_argument("--told", default="")
    chosen = parser.parse_args()
    if chosen.loop:
        watch, ranks = Watch(), int(os.environ["WORLD_SIZE"])
        globals()[chosen.loop](watch, chosen.steps, ranks)
        if os.environ["RANK"] == "0":
            Path(chosen.told).write_text(json.dumps({k: 1e3 * v / chosen.steps for k, v in watch.seconds.items()}))
        return
    rows = []
    for loop in LOOPS:
        for ranks in (1, 2):
            found = []
            for _ in range(chosen.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(measured(loop, ranks, chosen.steps, folder))
            row = {name: f"{statistics.median(one[name] for one in found):.3f}" for name in PHASES}
            rows.append({"loop": loop, "ranks": ranks, **row})
    show("Phases by `manyhands run` as shares of a stopwatch's (backward with communication)", rows)


if __name__ == "__main__":
    main()
