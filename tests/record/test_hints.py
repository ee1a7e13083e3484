"""Hints from records alone: each with its healthy twin, so that no run is spoken of without a reason."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.record.hints import Hint, hints
from manyhands.record.run import Run

PHASES = {
    "load": 0.4,
    "augment": 1.0,
    "forward": 3.0,
    "backward": 6.0,
    "communication": 1.0,
    "wait": 1.0,
    "update": 0.5,
}


def record(strategy: str = "ddp", phases: dict[str, float] | None = None, **fields: Any) -> Run:
    """A healthy run of 400 steps in four epochs, and what a test changes about it."""
    times = {**PHASES, **(phases or {})}
    step = sum(times.values())
    known: dict[str, Any] = {
        "ranks": 1 if strategy == "single" else 2,
        "threads": 1,
        "device": "cpu",
        "environment": {"cores": 2},
        "batch_size": 128,
        "data": "dataset",
        "command": f"manyhands train my_task.py {strategy} --ranks 2",
        "source": "my_task.py",
        "steps": 400,
        "seconds": 0.4 * step,
        "startup_seconds": 2.0,
        "evaluation_seconds": 0.5,
        "step_ms": {"median": step, "p10": 0.9 * step, "p90": 1.2 * step},
        "epochs": [{"epoch": epoch, "seconds": 0.1 * step, "loss": 1.0} for epoch in range(4)],
        "phases_ms": times,
    }
    return Run(**{**known, "task": "my_task", "strategy": strategy, **fields})


def only(run: Run) -> Hint:
    (found,) = hints(run)
    return found


@pytest.mark.parametrize("strategy", ["single", "ddp", "hogwild", "pipeline", "parameter_server"])
def test_a_healthy_run_gives_no_hint(strategy: str) -> None:
    assert hints(record(strategy)) == []


def test_a_slow_loader_is_answered_with_loader_workers() -> None:
    found = only(record("single", {"load": 73.0}))
    assert (found.bottleneck, found.cost_ms) == ("loading", 73.0)
    assert found.share == pytest.approx(0.854, abs=0.001)
    assert found.sentence == "Loading the data takes 85 % of the step (73.0 of 85.5 ms): try --loader-workers 4."
    assert found.command == "manyhands train my_task.py single --ranks 2 --loader-workers 4"


def test_what_is_known_of_the_data_decides_what_is_tried() -> None:
    """Data in memory has no loader; a stream has one worker; four workers that do not suffice are not asked for again."""
    slow = {"load": 73.0}
    assert hints(record(phases=slow, data="memory")) == []
    assert "--loader-workers 1" in only(record(phases=slow, data="stream")).command
    few = record(phases=slow, loader_workers=2, command="manyhands train my_task.py ddp --loader-workers 2")
    assert only(few).sentence.startswith("Loading the data with 2 loader workers takes 85 %")
    assert only(few).command == "manyhands train my_task.py ddp --loader-workers 4"
    for enough in (4, 8, "auto"):
        found = only(record(phases=slow, loader_workers=enough))
        assert "make reading a sample cheaper" in found.sentence
        assert found.command == "manyhands diagnose my_task.py ddp --ranks 2"
    script = only(record("script", slow, command="manyhands run train.py"))
    assert script.command == "DataLoader(..., num_workers=4)"


def test_a_run_from_python_is_answered_with_the_option_alone() -> None:
    assert only(record(phases={"load": 73.0}, command=None)).command == "--loader-workers 4"


@pytest.mark.parametrize(
    ("bottleneck", "phases", "part"),
    [
        ("augmentation", {"augment": 30.0}, "manyhands diagnose my_task.py ddp --ranks 2"),
        ("communication", {"communication": 30.0}, "--accumulate 4 communicates only every 4 steps"),
        ("update", {"update": 30.0}, "--accumulate 4 updates only every 4 steps"),
        ("transfer", {"transfer": 30.0}, "stay on the GPU"),
    ],
)
def test_a_phase_beyond_its_share_is_named(bottleneck: str, phases: dict[str, float], part: str) -> None:
    found = only(record(phases=phases))
    assert (found.bottleneck, found.cost_ms) == (bottleneck, 30.0)
    assert part in found.sentence


def test_what_talks_less_is_offered_by_name() -> None:
    hosts = [{"rank": rank, "host": f"n{rank}"} for rank in range(2)]
    near, far = (record(phases={"communication": 30.0}, per_rank=rows) for rows in ([], hosts))
    assert "; local_sgd:period=8 (not exact) averages weights every 8 updates." in only(near).sentence
    assert "compress" not in only(near).sentence
    assert only(far).sentence.endswith("; ddp:compress=bf16 (not exact) sends half the bytes.")
    for strategy, options in (("pipeline", {}), ("local_sgd", {}), ("ddp", {"compress": "bf16"})):
        again = only(record(strategy, {"communication": 30.0}, per_rank=hosts, options=options)).sentence
        assert "--accumulate 4" in again
        assert ("local_sgd:period" in again) is (strategy == "ddp")
        assert "compress" not in again


def test_the_largest_comes_first() -> None:
    assert [hint.bottleneck for hint in hints(record(phases={"load": 80.0, "update": 190.0}))] == ["update", "loading"]


def test_half_a_step_of_communication_or_updates_may_be_a_busy_machine() -> None:
    """`sparse` beside other people's work: 50 % communication under ddp, 47 % updates under hogwild."""
    assert hints(record(phases={"communication": 12.0})) == []
    assert hints(record("hogwild", {"update": 10.0})) == []


def test_waiting_is_a_lock_where_ranks_do_not_keep_step() -> None:
    """A pipeline on a busy machine waited for half of each step and nothing was wrong with it."""
    assert only(record("locked", {"wait": 30.0}, staleness={"mean": 1.0})).bottleneck == "lock"
    assert hints(record("pipeline", {"wait": 14.0})) == []


def test_a_slow_rank_is_named_with_what_it_costs() -> None:
    found = only(record(phases={"wait": 9.0}, slow_rank={"rank": 1, "phase": "load", "behind_ms": 8.04}))
    assert (found.bottleneck, found.cost_ms) == ("straggler", 8.04)
    assert found.sentence.startswith("Rank 1 is slow in load, 8.0 ms per step behind the others: manyhands diagnose")
    server = record("parameter_server", slow_rank={"rank": None, "server": 0, "phase": "update", "behind_ms": 8.0})
    assert only(server).sentence.startswith("Server 0 is slow in update")


def test_servers_update_for_the_ranks() -> None:
    assert hints(record("parameter_server", {"update": 40.0}, servers=[{"server": 0}])) == []


def test_more_threads_or_ranks_than_cores() -> None:
    found = only(record(threads=8))
    assert (found.bottleneck, found.cost_ms) == ("threads", None)
    assert found.sentence == "8 threads on each of 2 ranks share 2 cores: try --threads 1."
    assert only(record("single", threads=8)).sentence == "8 threads share 2 cores: try --threads 2."
    assert only(record(ranks=4)).sentence == "4 ranks share 2 cores: try --ranks 2."
    assert only(record(ranks=4)).command == "manyhands train my_task.py ddp --ranks 2"
    assert hints(record(threads=8, device="cuda:0")) == []
    hosts = [{"rank": rank, "host": f"host{rank}"} for rank in range(4)]
    assert hints(record(ranks=4, per_rank=hosts)) == []


def test_tiny_steps_ask_for_a_larger_batch() -> None:
    quick = {name: value / 10 for name, value in PHASES.items()}
    found = only(record("single", quick, batch_size=4))
    assert (found.bottleneck, found.command[-15:]) == ("launch", "--batch-size 32")
    assert found.sentence.startswith("Steps of 1.29 ms on 4 samples are spent on calls")
    assert hints(record("single", quick, batch_size=256)) == []
    assert hints(record("single", batch_size=4)) == []  # few samples, and enough to do for each


def test_evaluation_longer_than_training() -> None:
    found = only(record(evaluation_seconds=20.0))
    assert found.bottleneck == "evaluation"
    assert found.sentence == "Evaluation takes 20.0 s and training 5.2 s: try --eval-every 4 (epochs)."
    assert found.cost_ms == pytest.approx(50.0)  # per step
    once = record(evaluation_seconds=20.0, epochs=[{"epoch": 0, "seconds": 5.0}])
    assert hints(once) == []  # the end is evaluated whatever is asked for


def test_checkpoints_and_start_up_as_parts_of_the_run() -> None:
    found = only(record(checkpoint_seconds=7.0))
    assert found.sentence == "Checkpoints take 7.0 s, 48 % of the run: try --checkpoint-every 60s."
    assert hints(record(checkpoint_seconds=0.7)) == []
    assert only(record(startup_seconds=90.0)).bottleneck == "start"
    assert hints(record(startup_seconds=28.0)) == []  # seen where nothing but other people's work was slow


def test_a_pause_at_every_epoch_shows_in_the_mean() -> None:
    step = sum(PHASES.values())
    epochs = [{"epoch": epoch, "seconds": 0.1 * step + 2.0} for epoch in range(4)]
    found = only(record(seconds=0.4 * step + 8.0, epochs=epochs))
    assert found.cost_ms == pytest.approx(20.0)
    assert found.sentence.startswith("Every epoch takes 2000 ms to start, as long as 155 steps")
    between = only(record(pause_seconds=8.0))
    assert (between.cost_ms, between.sentence) == (20.0, found.sentence)
    assert hints(record(pause_seconds=0.8)) == []
    one_slow = [{**entry, "seconds": 0.1 * step + (8.0 if number == 2 else 0.0)} for number, entry in enumerate(epochs)]
    assert hints(record(seconds=0.4 * step + 8.0, epochs=one_slow)) == []  # a slow minute of the machine


def test_runs_without_figures_give_none() -> None:
    assert hints(Run("t", "ddp")) == []
    assert hints(record(phases={"load": 90.0}, status="failed")) == []
    assert hints(record(phases={"load": 90.0}, steps=3)) == []
