"""Where steps begin and end in loops of many kinds: the hooks are set in this process and taken out again."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from manyhands.bridges.scripts import steps as steps_module
from manyhands.bridges.scripts import times
from manyhands.bridges.scripts.board import Board
from manyhands.bridges.scripts.collectives import _Wrapped
from manyhands.bridges.scripts.hooks import Hooks, count_samples
from manyhands.bridges.scripts.steps import Steps
from manyhands.record.run import PHASES

Loop = Callable[[], Any]


@pytest.fixture
def heard() -> Iterator[Callable[[Loop], Steps]]:
    """What the hooks make of a loop."""
    opened: list[Hooks] = []

    def listen(loop: Loop) -> Steps:
        board = Board(1)
        steps = Steps(board.row(0), board.floats(0))
        opened.append(Hooks(steps))
        loop()
        steps.finish()
        opened[0].collectives.read(last=True)
        return steps

    yield listen
    opened[0]._patches.undo()
    assert torch.nn.Module.__call__.__module__ == "torch.nn.modules.module"


class Clock:
    """A clock that only sleeping moves: how busy the machine is does not show."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1
        for module in (steps_module, times):
            patch.setattr(module, "monotonic_ns", self)
        patch.setattr(times.HostTimes, "stamp", self)
        patch.setattr(times.HostTimes, "edge", self)

    def __call__(self, *_: Any) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def data(samples: int = 40) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 8), torch.randint(2, (samples,)))


def ms(steps: Steps, phase: str) -> float:
    return steps.totals.phases[PHASES.index(phase)] / 1e6


def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()


def test_a_plain_loop_with_evaluations_between_epochs(clock: Clock, heard: Callable[[Loop], Steps]) -> None:
    def loop() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            for x, y in DataLoader(data(), 8):
                step(net, x, y, optimizer)
            net.eval()
            with torch.no_grad():
                for x, _ in DataLoader(data(24), 8):
                    net(x)
                    clock.sleep(0.01)
            net.train()

    steps = heard(loop)
    assert (steps.totals.steps, steps.totals.updates, steps.totals.samples) == (10, 10, 80)
    assert sum(steps.totals.step_times.kept) == sum(steps.totals.phases)
    assert (steps.evaluation, sum(steps.totals.phases)) == (60e6, 0)  # in no step
    assert [number for number, *_ in steps.totals.losses()] == list(range(10))
    assert {PHASES[number] for number in steps.seen} == {"load", "forward", "backward", "update"}


def test_time_is_in_the_phase_that_took_it(clock: Clock, heard: Callable[[Loop], Steps]) -> None:
    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            clock.sleep(0.02)
            return self.net(x)

    class SlowData(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            clock.sleep(0.01)
            return super().__getitem__(index)

    def loop() -> None:
        net = Slow()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: clock.sleep(0.03))
        for x, y in DataLoader(SlowData(*data(20).tensors), 5):
            step(net, x, y, optimizer)
            clock.sleep(0.04)  # between steps: `other` of the next

    steps = heard(loop)
    wanted = {"load": 4 * 50, "forward": 4 * 20, "update": 4 * 30, "other": 3 * 40}
    assert {phase: ms(steps, phase) for phase in wanted} == wanted


LIBRARIES = {  # script, steps, backwards and samples
    "transformers": ("hf_trainer.py", (10, 20, 80)),
    "lightning": ("lightning_fit.py", (20, 20, 320)),
}


@pytest.mark.filterwarnings("ignore")  # of other people's code
@pytest.mark.parametrize("library", LIBRARIES)
def test_loops_that_libraries_write(
    library: str, heard: Callable[[Loop], Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not all(importlib.util.find_spec(name) for name in (library, "accelerate")):
        pytest.skip(f"{library} is not installed")
    script, expected = LIBRARIES[library]
    monkeypatch.setattr(sys, "argv", [script, "out"])
    monkeypatch.setattr(os, "environ", os.environ.copy())  # Lightning leaves its seed there
    path = Path(__file__).parent / "scripts" / script
    with torch.random.fork_rng():
        steps = heard(lambda: runpy.run_path(str(path), run_name="__main__"))
    assert (steps.totals.steps, steps.totals.backwards, steps.totals.samples) == expected
    assert {"load", "forward", "backward", "update"} <= {PHASES[number] for number in steps.seen}
    assert steps.evaluation > 0


def test_a_gan_makes_one_step_of_two_updates(heard: Callable[[Loop], Steps]) -> None:
    def loop() -> None:
        makes, judges = nn.Linear(4, 8), nn.Linear(8, 1)
        both = [torch.optim.Adam(net.parameters()) for net in (makes, judges)]
        for (real,) in DataLoader(TensorDataset(torch.randn(24, 8)), 8):
            both[1].zero_grad()
            with torch.no_grad():
                fake = makes(torch.randn(8, 4))
            (judges(fake).mean() - judges(real).mean()).backward()
            both[1].step()
            both[0].zero_grad()
            (-judges(makes(torch.randn(8, 4))).mean()).backward()
            both[0].step()

    steps = heard(loop)
    assert (steps.totals.steps, steps.totals.updates, steps.totals.samples) == (3, 6, 24)
    assert steps.evaluation == 0


def test_gradients_accumulated_over_batches_are_one_step(heard: Callable[[Loop], Steps]) -> None:
    def loop() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number, (x, y) in enumerate(DataLoader(data(48), 8)):
            (nn.functional.cross_entropy(net(x), y) / 3).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    steps = heard(loop)
    assert (steps.totals.steps, steps.totals.backwards, steps.totals.samples) == (2, 6, 48)


def test_a_loop_without_a_loader_has_steps_but_no_samples(clock: Clock, heard: Callable[[Loop], Steps]) -> None:
    def loop() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = torch.randn(16, 8), torch.randint(2, (16,))
        for _ in range(5):
            step(net, x, y, optimizer)
            net.eval()
            with torch.no_grad():
                net(x)
                clock.sleep(0.005)
                net(x)
            net.train()

    steps = heard(loop)
    assert (steps.totals.steps, steps.totals.loads) == (5, 0)
    assert steps.evaluation == 25e6


def test_a_closure_is_inside_the_update(heard: Callable[[Loop], Steps]) -> None:
    def loop() -> None:
        net = model()
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
        for x, y in DataLoader(data(24), 8):

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)

    steps = heard(loop)
    assert (steps.totals.steps, steps.totals.updates, steps.totals.samples) == (3, 3, 24)
    assert steps.totals.backwards > 3
    assert min(ms(steps, phase) for phase in ("forward", "backward", "update")) > 0


def test_a_scaled_loss_is_recorded_as_it_was(heard: Callable[[Loop], Steps]) -> None:
    """GradScaler multiplies by 65,536 what backward is called on: the recorded losses were that large."""

    def loop() -> None:
        net = model()
        optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        for x, y in DataLoader(data(16), 8):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    steps = heard(loop)
    assert steps.totals.steps == 2
    assert all(0 < loss < 5 for _, loss, *_ in steps.totals.losses())


def test_a_teacher_without_a_gradient_belongs_to_the_step(heard: Callable[[Loop], Steps]) -> None:
    def loop() -> None:
        teacher, net = model().eval(), model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, _ in DataLoader(data(32), 8):
            with torch.no_grad():
                wanted = teacher(x).argmax(1)
            step(net, x, wanted, optimizer)

    steps = heard(loop)
    assert (steps.totals.steps, steps.totals.samples, steps.evaluation) == (4, 32, 0)


def test_what_tries_the_model_before_the_training_is_no_step(clock: Clock, heard: Callable[[Loop], Steps]) -> None:
    def loop() -> None:
        net = model()
        net(torch.randn(2, 8))
        clock.sleep(0.05)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in DataLoader(data(16), 8):
            step(net, x, y, optimizer)

    steps = heard(loop)
    assert steps.totals.steps == 2
    assert sum(steps.totals.phases) == 0


def test_weights_are_the_same_to_the_last_bit(heard: Callable[[Loop], Steps]) -> None:
    found: list[torch.Tensor] = []

    def loop() -> None:
        net = model()
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(net.parameters())
        for x, y in DataLoader(data(), 8, shuffle=True):
            step(net, x, y, optimizer)
        found.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))

    loop()
    heard(loop)
    assert torch.equal(*found)


def test_workers_of_a_loader_are_left_alone(heard: Callable[[Loop], Steps]) -> None:
    """Forked workers carry the hooks along; they wrote into the rank's figures until they were taken out there."""

    class Asks(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            x, y = super().__getitem__(index)
            hooked = torch.nn.Module.__call__.__module__ != "torch.nn.modules.module"
            return x, y, torch.tensor(hooked or "loading" in torch.utils.data.DataLoader.__iter__.__qualname__)

    def loop() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(Asks(*data(16).tensors), 8, num_workers=1, multiprocessing_context="fork")
        for x, y, hooked in loader:
            assert not hooked.any()
            step(net, x, y, optimizer)

    assert heard(loop).totals.steps == 2


def test_a_torch_without_the_private_parts_is_measured_as_far_as_it_goes(
    heard: Callable[[Loop], Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.utils.data.dataloader, "_BaseDataLoaderIter")

    def loop() -> None:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in DataLoader(data(16), 8):
            step(net, x, y, optimizer)

    assert heard(loop).totals.steps == 2
    assert _Wrapped(nn.Linear(1, 1)).news() == (0, 0, 0)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(3, 4), 3),
        ([torch.ones(5), 1], 5),
        ({"ids": torch.ones(2, 7), "mask": torch.ones(2, 7)}, 2),
        ((("text",), {"x": torch.ones(6)}), 6),
        (torch.tensor(1.0), None),
        ("text", None),
        ([], None),
    ],
)
def test_samples_of_a_batch(batch: Any, samples: int | None) -> None:
    assert count_samples(batch) == samples
