"""Checkpoints: nothing is lost, nothing damaged is loaded, nothing is pickled."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from manyhands.errors import BadInput
from manyhands.record.step_losses import StepLosses
from manyhands.record.step_times import StepTimes
from manyhands.training.checkpoints.checkpoint import FILES, MANIFEST, Checkpoint, published
from manyhands.training.checkpoints.history import TOTALS, History
from manyhands.training.checkpoints.interval import Interval, interval
from manyhands.training.checkpoints.plain_state import assemble, take_apart
from manyhands.training.checkpoints.read import Damaged, latest, load
from manyhands.training.checkpoints.same_task import refuse_other_task
from manyhands.training.checkpoints.write import write
from manyhands.training.checkpoints.writer import Writer
from tests.conftest import ROOT


def made(step: int = 5, size: int = 40) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = {
        "a.weight": torch.randn(size, generator=generator),
        "a.steps": torch.tensor(step),
        "empty": torch.zeros(0, 3),
    }
    state = {
        "optimizer": {
            "state": {"a.weight": {"momentum_buffer": torch.randn(size, generator=generator).bfloat16(), "step": 3}},
            "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "names": ["a.weight"], "foreach": None}],
        },
        "schedule": {"milestones": Counter({3: 1, 7: 2}), "best": float("inf"), 4: "four"},
        "updates": step,
    }
    forms = {"a.weight": ["float32", [size]], "a.steps": ["int64", []], "empty": ["float32", [0, 3]]}
    task = {"name": "t", "weights": forms, "batch_size": 32}
    history = {
        "losses": torch.rand(step),
        "counts": torch.ones(step, dtype=torch.int64),
        "durations": torch.ones(step, dtype=torch.int64),
        "faults": [],
    }
    return Checkpoint(step, 1, 2, weights, state, history, task, "ddp:bucket_mb=1.0", 2)


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return type(left) is type(right) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)  # type: ignore[index,attr-defined]
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))  # type: ignore[arg-type]
    return left == right and type(left) is type(right)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    checkpoint = made()
    path = write(tmp_path, checkpoint)
    assert path.name == "step-00000005"
    found = load(path)
    for part in ("step", "epoch", "number", "weights", "state", "history", "task", "strategy", "ranks"):
        assert same(getattr(found, part), getattr(checkpoint, part)), part
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


def test_the_files_are_plain_safetensors_and_json(tmp_path: Path) -> None:
    path = write(tmp_path, made())
    assert torch.equal(load_file(path / "model.safetensors")["a.weight"], made().weights["a.weight"])
    assert "optimizer/state/a.weight/momentum_buffer" in load_file(path / "optimizer.safetensors")
    assert json.loads((path / "state.json").read_text())["strategy"] == "ddp:bucket_mb=1.0"
    assert {file.name for file in path.iterdir()} == {*FILES, MANIFEST}


def test_state_that_only_pickle_could_hold_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"cannot hold the function that state keeps as 'schedule/anneal'"):
        take_apart({"schedule": {"anneal": made}}, {}, "state")


def test_numbers_no_file_has_a_name_for_are_refused(tmp_path: Path) -> None:
    checkpoint = made()
    checkpoint.weights["a.weight"] = checkpoint.weights["a.weight"].to(torch.complex128)
    with pytest.raises(BadInput, match=r'a checkpoint cannot hold ".*a.weight" \(torch.complex128\)'):
        write(tmp_path, checkpoint)


def test_names_with_slashes_do_not_collide() -> None:
    nest = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}}
    tensors: dict[str, torch.Tensor] = {}
    assert same(assemble(take_apart(nest, tensors, "x"), tensors), nest)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (200, Interval(steps=200)),
        ("200", Interval(steps=200)),
        ("30s", Interval(seconds=30)),
        ("1.5m", Interval(seconds=90)),
        (None, None),
    ],
)
def test_intervals(spec: int | str | None, wanted: Interval | None) -> None:
    assert interval(spec) == wanted


@pytest.mark.parametrize("spec", [0, -3, "0s", "often", "5d", 2.5, True, "", "s", "infs"])
def test_intervals_that_mean_nothing(spec: object) -> None:
    with pytest.raises(BadInput, match=r"checkpoint_every must be a number of steps \(200\) or a time"):
        interval(spec)  # type: ignore[arg-type]


def test_another_task_is_refused_by_its_first_difference(tmp_path: Path) -> None:
    checkpoint = load(write(tmp_path, made()))
    task = checkpoint.task
    refuse_other_task(checkpoint, task)
    with pytest.raises(BadInput, match="batch_size was 32 and is 64"):
        refuse_other_task(checkpoint, {**task, "batch_size": 64})
    with pytest.raises(BadInput, match=r'weight "a.weight" was float32 \(40,\) and is float32 \(41,\)'):
        refuse_other_task(checkpoint, {**task, "weights": {"a.weight": ["float32", [41]]}, "batch_size": 64})
    with pytest.raises(BadInput, match='only the model has the weight "b"'):
        refuse_other_task(checkpoint, {**task, "weights": {**task["weights"], "b": ["float32", [1]]}})


# ---------------------------------------------------------------- damage


def break_somewhere(path: Path, chance: random.Random) -> str:
    """Cut a file, flip a bit of it or remove it."""
    file = path / chance.choice([*FILES, MANIFEST])
    data = bytearray(file.read_bytes())
    kind = chance.choice(["cut", "flip", "flip", "flip", "gone"])
    if kind == "gone":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(data[: chance.randrange(len(data))])
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
    return f"{kind} {file.name}"


@pytest.mark.parametrize("times", [50, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_damaged_checkpoint_is_never_loaded(tmp_path: Path, times: int) -> None:
    chance = random.Random(times)
    good, fresh = write(tmp_path / "good", made(5)), write(tmp_path / "fresh", made(9))
    folder = tmp_path / "checkpoints"
    shutil.copytree(good, folder / good.name)
    for _ in range(times):
        target = folder / fresh.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(fresh, target)
        what = break_somewhere(target, chance)
        with pytest.raises(Damaged):
            load(target)
        found, reasons = latest(folder)
        assert found is not None, what
        assert found.step == 5, what
        assert len(reasons) == 1 and "step-00000009 is not used: " in reasons[0], what  # noqa: PT018


def test_no_whole_checkpoint_at_all(tmp_path: Path) -> None:
    assert latest(tmp_path / "nowhere") == (None, [])
    path = write(tmp_path, made())
    (path / MANIFEST).unlink()
    found, reasons = latest(tmp_path)
    assert found is None
    assert reasons == ["checkpoint step-00000005 is not used: it has no manifest.json"]


KILLED_WHILE_WRITING = """
import os, random, signal, sys, time
sys.path[:0] = [{here!r}]
from pathlib import Path
from typing import Any
from tests.training.checkpoints.test_checkpoint import made
from manyhands.training.checkpoints.checkpoint import published
from manyhands.training.checkpoints.writer import Writer
chance = random.Random(3)
for attempt in range({times}):
    folder = Path({folder!r}) / str(attempt)
    child = os.fork()
    if child == 0:
        os.setsid()
        writer = Writer(folder, print, [], keep=2)
        for step in range(1, 10_000):
            writer.write(made(step, size=100_000))
    until = time.monotonic() + 30
    while not published(folder) and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(chance.random() * 0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.soak
@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_while_writing_it_can_always_be_resumed(tmp_path: Path, times: int) -> None:
    """kill -9 of a whole process group at random moments: what is published is whole."""
    code = KILLED_WHILE_WRITING.format(here=str(ROOT), times=times, folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    cut_short = 0
    for attempt in range(times):
        found, reasons = latest(tmp_path / str(attempt))
        assert found is not None
        assert reasons == [], "what is published is whole"
        assert torch.equal(found.weights["a.weight"], made(found.step, size=100_000).weights["a.weight"])
        cut_short += any((tmp_path / str(attempt)).glob(".step-*"))
    assert cut_short or times < 50, "some were killed in the middle of writing"


# ---------------------------------------------------------------- the writer


def test_the_last_ones_are_kept_and_strangers_go(tmp_path: Path) -> None:
    write(tmp_path, made(77))  # of an earlier run
    writer = Writer(tmp_path, lambda *_: pytest.fail("nothing failed"), own=[3], keep=3)
    write(tmp_path, made(3))
    for step in (4, 5, 6):
        writer.write(made(step))
        writer.wait()
    assert [path.name for path in published(tmp_path)] == ["step-00000006", "step-00000005", "step-00000004"]


def test_the_snapshot_is_taken_before_training_goes_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path, lambda *_: pytest.fail("nothing failed"), own=[])
    checkpoint = made(5, size=500_000)
    before = checkpoint.state["optimizer"]["state"]["a.weight"]["momentum_buffer"].clone()
    writer.write(checkpoint)
    checkpoint.state["optimizer"]["state"]["a.weight"]["momentum_buffer"].zero_()  # training goes on
    checkpoint.weights["a.weight"].zero_()
    writer.wait()
    found = load(published(tmp_path)[0])
    assert torch.equal(found.state["optimizer"]["state"]["a.weight"]["momentum_buffer"], before)
    assert torch.equal(found.weights["a.weight"], made(5, size=500_000).weights["a.weight"])


def test_a_checkpoint_of_the_same_step_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path, made(5, size=10))
    path = write(tmp_path, made(5, size=20))
    assert len(load(path).weights["a.weight"]) == 20
    assert [file.name for file in tmp_path.iterdir()] == ["step-00000005"]


def test_a_full_disk_is_said_and_leaves_the_others_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, str]] = []
    writer = Writer(tmp_path, lambda *what: said.append(what), own=[])
    writer.write(made(1))
    writer.wait()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    writer.write(made(2))
    writer.wait()
    assert len(said) == 1
    assert said[0][0] == 2
    assert "is full (0.0 MB needed, 0.0 MB free); free some space there" in said[0][1]
    assert [file.name for file in tmp_path.iterdir()] == ["step-00000001"], "no half-written folder is left"
    load(published(tmp_path)[0])


@pytest.mark.parametrize("units", [None, [1.0, 1.0, 3.0, 1.0]])
def test_older_histories_give_the_epoch_that_goes_on(units: list[float] | None) -> None:
    """They hold samples, and later units, of every step; now the epoch's sums stand there."""
    stored = {
        "losses": torch.tensor([9.0, 9.0, 2.0, 4.0], dtype=torch.float64),
        "counts": torch.tensor([5, 5, 2, 2]),
        "durations": torch.tensor([7, 7, 7, 7]),
        "faults": [],
    }
    if units is not None:
        stored["units"] = torch.tensor(units, dtype=torch.float64)
    history = History.restored(stored, number=2)
    assert history.epoch_loss == pytest.approx(3.0 if units is None else 2.5)
    assert (history.samples, history.epoch_samples) == (14, 4)
    assert (list(history.losses.means()), list(history.times.kept)) == ([9.0, 9.0, 2.0, 4.0], [7] * 4)
    again = History.restored(history.stored(), number=2)
    assert (again.epoch_loss, again.epoch_samples, again.losses) == (history.epoch_loss, 4, history.losses)
    assert (again.times, again.noted) == (history.times, 4)


def test_a_history_of_a_million_steps_is_no_longer_than_one_of_a_hundred_thousand() -> None:
    """Every checkpoint of a long fit held 16 bytes for each of its steps."""

    def stored(steps: int) -> dict[str, Any]:
        history = History()
        for upto in range(50_000, steps + 1, 50_000):
            history.add([{**dict.fromkeys(TOTALS, 0), **made_since(upto - 50_000, upto)}], upto, ranks=1)
        assert History.restored(history.stored(), number=0).times == history.times
        assert len(history.losses.means()) == len(history.losses.sums)
        return history.stored()

    def made_since(first: int, upto: int) -> dict[str, Any]:
        losses, times = StepLosses(first), StepTimes(first)
        for step in range(first, upto):
            losses.note(step, 1.0, 4, 4.0)
            times.note(1000)
        return {"losses": losses, "times": times, "rank": 0}

    few, many = stored(100_000), stored(1_000_000)
    assert {len(value) for value in few.values() if isinstance(value, torch.Tensor)} == {100_000}
    assert max(len(value) for value in many.values() if isinstance(value, torch.Tensor | list)) <= 100_000
    assert (many["noted"], many["times"]["steps"]) == (1_000_000, 1_000_000)


@pytest.mark.parametrize(
    "change",
    [
        {"steps_per_loss": 0},
        {"times": {"each": 0, "steps": 3}},
        {"times": {"each": 1}},
        {"times": [1, 3]},
        {"loss_units": None},
        {"noted": "3"},
        {"noted": -1},
    ],
    ids=str,
)
def test_figures_that_cannot_be_are_not_what_we_write(change: dict[str, Any], tmp_path: Path) -> None:
    """A loss that stands for no step would end a resumed fit in a division by zero."""
    history = History()
    history.add_losses([StepLosses()], 3)
    good = dataclasses.replace(made(3), history=history.stored())
    assert History.restored(load(write(tmp_path / "good", good)).history, number=3).losses == history.losses
    broken = dataclasses.replace(good, history={**good.history, **change})
    with pytest.raises(Damaged, match="its content is not what manyhands writes"):
        load(write(tmp_path / "broken", broken))
