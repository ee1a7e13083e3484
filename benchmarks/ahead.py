"""What a step of LeNet on MNIST waits for its batch, by how batches in memory are prepared.

    python benchmarks/ahead.py --rounds 20 --threads 2

Sides, in turn, round after round: one batch at a time when the step asks; several steps' batches at a time, as `fit`
does; and one at a time in a thread beside the step. A ratio is that of whole steps, to one at a time, in the same round.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import threading
import time
from collections.abc import Iterator

import torch
from tables import interval, show

from manyhands.data.batches import Batch, Batches
from manyhands.data.files import DataNotFound, mnist
from manyhands.data.order import Order, Shard
from manyhands.data.sources import TensorSource
from manyhands.tasks import load_task

STEPS = 64  # of a side in a round


def images() -> tuple[torch.Tensor, torch.Tensor]:
    try:
        return mnist()[0]
    except DataNotFound:
        return torch.randint(0, 256, (60_000, 1, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (60_000,))


def in_a_thread(batches: Iterator[Batch], ahead: int = 4) -> Iterator[Batch]:
    ready: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    room, ended = threading.Semaphore(ahead), threading.Event()

    def prepare() -> None:
        for batch in batches:
            room.acquire()
            if ended.is_set():
                return
            ready.put(batch)

    threading.Thread(target=prepare, daemon=True).start()
    try:
        while True:
            batch = ready.get()
            room.release()
            yield batch
    finally:
        ended.set()
        room.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task, order = load_task("mnist"), Order(60_000, 32, seed=0)
    model = task.model()
    optimizer = task.optimizer(model.named_parameters())
    blocks, single = (Batches(TensorSource(*images()), order, Shard(), keyed=True) for _ in range(2))
    single._steps_at_a_time = 1
    sides = {
        "one at a time": single.epoch,
        "several at a time": blocks.epoch,
        "in a thread": lambda epoch, first: in_a_thread(single.epoch(epoch, first)),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    first = 0
    for round_ in range(options.rounds + 1):
        for name, epoch in sides.items():
            waited, began, feed = 0.0, time.perf_counter(), epoch(0, first)
            for _ in range(STEPS):
                asked = time.perf_counter()
                batch = next(feed)
                waited += time.perf_counter() - asked
                loss = task.loss(model(task.augment(batch.input, batch.keys)), batch.target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            took = time.perf_counter() - began
            feed.close()
            first = (first + STEPS) % (order.steps_per_epoch - STEPS)
            if round_:  # the first one warms up
                found[name].append((took / STEPS * 1e6, waited / STEPS * 1e6))
    rows = []
    for name, figures in found.items():
        ratios = [own / base for (own, _), (base, _) in zip(figures, found["one at a time"], strict=True)]
        low, high = interval(ratios)
        rows.append(
            {
                "batches are prepared": name,
                "step (us)": statistics.median(step for step, _ in figures),
                "of it waiting (us)": statistics.median(wait for _, wait in figures),
                "step ratio": statistics.fmean(ratios),
                "95 % of the ratio": f"{low:.3f} .. {high:.3f}",
            }
        )
    show("Batches in memory", rows, threads=options.threads, rounds=options.rounds, steps=STEPS)


if __name__ == "__main__":
    main()
