"""Resume and restart: a run that was broken ends with the weights of the unbroken one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import manyhands as mh
from manyhands.errors import BadInput, RankFailed, Refused
from manyhands.record.run import Run
from manyhands.training.checkpoints.checkpoint import published, step_of
from manyhands.training.checkpoints.read import latest
from manyhands.world.engines import torchrun
from tests.breakable import DETECTED_SECONDS, RESUMED_SECONDS, BreakingLoss, checkpoint_of, signal_self, toy
from tests.conftest import ROOT

EXACT = [
    ("single", 1),
    ("ddp", 2),
    ("ddp", 3),
    ("ddp:transport=shm", 3),
    ("data_parallel", 2),
    ("balanced_data_parallel", 2),
    ("model_parallel", 2),
    ("pipeline", 2),
    ("hybrid:replicas=2,stages=2", 4),
    ("locked", 2),
    ("parameter_server", 2),
    ("fsdp", 2),
]
QUICK = [("ddp", 3), ("pipeline", 2)]  # single: in most tests below
fit = partial(mh.fit, progress=False, threads=1)


def there_is(strategy: str) -> bool:
    return importlib.util.find_spec(f"manyhands.strategies.{strategy.partition(':')[0]}") is not None


def rows(strategies: list[tuple[str, int]], quick: list[tuple[str, int]]) -> list[Any]:
    return [
        pytest.param(*row, marks=[] if row in quick else [pytest.mark.soak]) for row in strategies if there_is(row[0])
    ]


def distance(left: Run, right: Run) -> float:
    assert left.weights is not None
    assert right.weights is not None
    return max(float((left.weights[name] - right.weights[name]).abs().max()) for name in left.weights)


@pytest.mark.parametrize(("strategy", "ranks"), rows(EXACT, QUICK))
def test_resumed_in_the_middle_of_an_epoch_the_weights_are_the_same_to_the_last_bit(
    strategy: str, ranks: int, tmp_path: Path
) -> None:
    task = toy()
    whole = fit(task, strategy, ranks=ranks)
    fit(task, strategy, ranks=ranks, run_dir=tmp_path, checkpoint_every=4, max_steps=11)
    resumed = fit(task, strategy, ranks=ranks, run_dir=tmp_path, checkpoint_every=4, resume=True)
    assert resumed.resumed_from == {"step": 11, "epoch": 2, "strategy": strategy, "ranks": ranks}
    assert resumed.weights_sha256 == whole.weights_sha256
    assert_whole(resumed, whole)


def assert_whole(resumed: Run, whole: Run) -> None:
    """The record of a resumed run is that of the whole run."""
    assert resumed.losses == whole.losses
    assert (resumed.steps, resumed.samples, resumed.updates) == (whole.steps, whole.samples, whole.updates)
    assert [entry["epoch"] for entry in resumed.epochs] == [1, 2]
    for mine, theirs in zip(resumed.epochs, whole.epochs, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
        assert mine["samples"] == theirs["samples"]
        assert mine["learning_rate"] == theirs["learning_rate"]
    assert resumed.test == whole.test
    assert resumed.seconds is not None
    assert resumed.phases_ms is not None
    assert sum(resumed.phases_ms.values()) * resumed.steps / 1e3 == pytest.approx(resumed.seconds, rel=1e-6)


@pytest.mark.parametrize("keywords", [{"accumulate": 3}, {"clip": 0.5}])
def test_resumed_with_options_that_change_a_step(keywords: dict[str, Any], tmp_path: Path) -> None:
    task = toy(optimizer=partial(torch.optim.AdamW, lr=0.01))
    whole = fit(task, "ddp", ranks=2, **keywords)
    fit(task, "ddp", ranks=2, run_dir=tmp_path, checkpoint_every=5, max_steps=13, **keywords)
    found, _ = latest(tmp_path / "checkpoints")
    assert found is not None
    if "accumulate" in keywords:
        assert found.step == 11, "after the last step that wrote the weights"
    resumed = fit(task, "ddp", ranks=2, run_dir=tmp_path, resume=True, **keywords)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.losses == whole.losses


def test_data_that_draws_random_numbers_draws_the_same_ones(tmp_path: Path) -> None:
    task = toy(train=Noisy(), model=dropout_net)
    whole = fit(task)
    fit(task, run_dir=tmp_path, checkpoint_every=3, max_steps=5)
    assert fit(task, run_dir=tmp_path, resume=True).weights_sha256 == whole.weights_sha256


class Noisy(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> Any:
        import random

        return torch.randn(12) + random.random() + float(_numpy_random()), index % 2


def _numpy_random() -> float:
    import numpy as np

    return float(np.random.rand())


def dropout_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Dropout(0.3), torch.nn.Linear(24, 2))


MATRIX = [("single", 1), ("ddp", 2), ("ddp", 3), ("pipeline", 2), ("parameter_server", 2), ("fsdp", 2), ("hogwild", 2)]
PAIRS = [(a, b) for a in MATRIX for b in MATRIX if there_is(a[0]) and there_is(b[0])]
SAMPLE = [(("fsdp", 2), ("pipeline", 2)), (("hogwild", 2), ("ddp", 2)), (("parameter_server", 2), ("single", 1))]


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(*pair, marks=[] if pair in SAMPLE else [pytest.mark.soak]) for pair in PAIRS]
)
def test_written_under_one_strategy_resumed_under_another(first: Any, second: Any, tmp_path: Path) -> None:
    task = toy()
    fit(task, first[0], ranks=first[1], run_dir=tmp_path, checkpoint_every=4, max_steps=11)
    resumed = fit(task, second[0], ranks=second[1], run_dir=tmp_path, checkpoint_every=100, resume=True)
    assert (resumed.steps, resumed.samples) == (16, 240)
    assert len(resumed.losses) == 16
    if "hogwild" in (first[0], second[0]):
        assert distance(resumed, fit(task)) < 0.2
    else:
        assert distance(resumed, fit(task)) < 1e-5


def test_seconds_between_checkpoints_are_agreed_on_by_all_ranks(tmp_path: Path) -> None:
    for strategy in ("ddp", "hogwild"):
        folder = tmp_path / strategy
        run = fit(toy(epochs=12), strategy, ranks=2, run_dir=folder, checkpoint_every="0.02s")
        assert run.steps == 96
        assert run.checkpoint_seconds is not None
        assert 0 < run.checkpoint_seconds < 10
        kept = [step_of(path) for path in published(folder / "checkpoints")]
        assert len(kept) == 3
        assert kept[0] == 96


def test_resume_without_a_checkpoint_starts_from_scratch_and_says_so(tmp_path: Path) -> None:
    run = fit(toy(), run_dir=tmp_path, resume=True, checkpoint_every=100)
    assert run.resumed_from is None
    assert any("no checkpoint to resume from in" in note and "starting from scratch" in note for note in run.notes)
    assert run.steps == 16


def test_a_finished_run_resumes_to_its_own_result(tmp_path: Path) -> None:
    run = fit(toy(), "ddp", ranks=2, run_dir=tmp_path, checkpoint_every=100)
    again = fit(toy(), "ddp", ranks=2, run_dir=tmp_path, checkpoint_every=100, resume=True)
    assert again.weights_sha256 == run.weights_sha256
    assert again.test == run.test
    assert again.losses == run.losses
    assert again.resumed_from is not None
    assert again.resumed_from["step"] == 16


def test_a_damaged_checkpoint_is_passed_over_and_the_reason_said(tmp_path: Path) -> None:
    whole = fit(toy())
    fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=11)
    newest = published(tmp_path / "checkpoints")[0]
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-3] ^= 4
    (newest / "model.safetensors").write_bytes(data)
    run = fit(toy(), run_dir=tmp_path, checkpoint_every=4, resume=True)
    assert run.resumed_from is not None
    assert run.resumed_from["step"] == 8
    assert (
        "checkpoint step-00000011 is not used: the SHA-256 of model.safetensors is not that of its manifest"
        in run.notes
    )
    assert run.weights_sha256 == whole.weights_sha256


def test_another_task_or_model_is_refused(tmp_path: Path) -> None:
    fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=4)
    with pytest.raises(BadInput, match=r"belongs to another task: batch_size was 16 and is 8; resume with the task"):
        fit(toy(batch_size=8), run_dir=tmp_path, resume=True)
    with pytest.raises(BadInput, match=r'only the model has the weight "0.bias"|weight "0.weight" was'):
        fit(toy(model=lambda: torch.nn.Sequential(torch.nn.Linear(12, 2))), run_dir=tmp_path, resume=True)
    with pytest.raises(BadInput, match="epochs was 2 and is 3"):
        fit(toy(), run_dir=tmp_path, resume=True, epochs=3)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"checkpoint_every": 5}, r"checkpoint_every needs a folder for checkpoints; give run_dir"),
        ({"resume": True}, r"resume needs a folder for checkpoints; give run_dir"),
        ({"max_restarts": -1}, r"max_restarts must be 0 or more \(found -1\)"),
        ({"stall_seconds": 0}, r"stall_seconds must be above 0 \(found 0\)"),
        ({"on_death": "ignore"}, r'on_death must be "end" or "continue" \(found \'ignore\'\)'),
    ],
)
def test_bad_input(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fit(toy(), **keywords)


def steps_in(folder: Path) -> list[int]:
    return [step_of(path) for path in published(folder)]


def test_a_fit_from_scratch_puts_earlier_checkpoints_aside_and_deletes_none(tmp_path: Path) -> None:
    """Put aside twice, the good ones were gone."""
    fit(toy(), run_dir=tmp_path, checkpoint_every=4)
    run = fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=4)
    fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=8)
    assert steps_in(tmp_path / "checkpoints") == [8, 4]
    assert steps_in(tmp_path / "checkpoints.before") == [16, 12, 8]
    assert steps_in(tmp_path / "checkpoints.before-2") == [4]
    assert any("starting from scratch: the checkpoints of an earlier run are now in" in note for note in run.notes)


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@pytest.mark.parametrize(
    ("strategy", "keywords", "environment"),
    [
        ("pipeline", {"ranks": 9}, {}),  # more stages than layers: known when the model is cut
        ("ddp", {"ranks": 2, "on_death": "continue"}, {}),
        ("ddp", {"ranks": 1000}, {}),  # more processes than descriptors
        ("data_parallel", {"ranks": 2, "compile": True}, {}),
        ("data_parallel", {"ranks": 2, "compile": True}, TORCHRUN),
        ("single", {"batch_size": 8, "resume": True}, {}),  # another task than the checkpoint's
        ("single", {"batch_size": 8, "resume": True}, TORCHRUN),
    ],
)
def test_a_refused_fit_leaves_the_checkpoints_alone(
    strategy: str,
    keywords: dict[str, Any],
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It moved them aside first; refused twice, it had deleted them."""
    run = fit(toy(), run_dir=tmp_path, checkpoint_every=8)
    task = toy(batch_size=keywords.get("batch_size", 16))
    options = {name: value for name, value in keywords.items() if name != "batch_size"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        with pytest.raises(BadInput):
            fit(task, strategy, run_dir=tmp_path, checkpoint_every=8, **options)
    check_untouched(tmp_path, run)


def check_untouched(folder: Path, run: Run) -> None:
    assert steps_in(folder / "checkpoints") == [16, 8]
    assert not list(folder.glob("checkpoints.*"))
    assert Run.load(folder).weights_sha256 == run.weights_sha256


def test_a_task_that_cannot_be_sent_to_the_ranks_leaves_the_checkpoints_alone(tmp_path: Path) -> None:
    """They were moved aside before the task was packed."""
    run = fit(toy(), run_dir=tmp_path, checkpoint_every=8)
    with pytest.raises(BadInput, match=r"task\.train\.lock is a lock"):
        fit(toy(train=Unsendable()), run_dir=tmp_path, checkpoint_every=8)
    check_untouched(tmp_path, run)


class Unsendable(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(12), index % 2


def test_after_a_fit_that_failed_at_once_resume_finds_the_run_before(tmp_path: Path) -> None:
    whole = fit(toy())
    fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=12)
    breaking = toy(loss=BreakingLoss(_raise, call=1, rank=0))
    with pytest.raises(RankFailed, match="boom"):
        fit(breaking, run_dir=tmp_path, checkpoint_every=4)
    assert steps_in(tmp_path / "checkpoints") == []
    struck = toy(loss=BreakingLoss(_raise, call=2, rank=0, unless=str(tmp_path / "struck")))
    run = fit(struck, run_dir=tmp_path, checkpoint_every=4, resume=True, max_restarts=1)
    assert run.resumed_from is not None
    assert run.resumed_from["step"] == 12
    assert run.faults[-1]["resumed_step"] == 12, "a restart too goes on from there"
    assert any("using one of an earlier run" in note for note in run.notes)
    assert run.weights_sha256 == whole.weights_sha256


def test_a_restart_does_not_go_on_from_the_checkpoints_of_another_run(tmp_path: Path) -> None:
    """Without checkpoints of its own a restarted fit took up those it found in the folder."""
    fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=12)
    task = toy(loss=BreakingLoss(_raise, call=3, rank=0, unless=str(tmp_path / "struck")))
    run = fit(task, run_dir=tmp_path, max_restarts=1)
    assert run.faults[0]["resumed_step"] == 0
    assert run.resumed_from is None


def test_a_resumed_fit_says_under_which_other_conditions_it_goes_on(tmp_path: Path) -> None:
    """Another clip, precision, loss or data of the same size went on without a word."""
    fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=8)
    other = toy(loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    input, target = other.train
    changed = other.replace(train=(input + 1, target))
    run = fit(changed, run_dir=tmp_path, resume=True, clip=1.0, precision="bf16")
    notes = "\n".join(run.notes)
    for change in (
        "clip was None and is 1.0;",
        "precision was fp32 and is bf16;",
        "loss was cross_entropy and is CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1, reduction='mean');",
        "the training samples are not those it was made with;",
    ):
        assert f"the checkpoint was made under other conditions: {change}" in notes
    assert "other conditions" not in "\n".join(fit(toy(), run_dir=tmp_path, resume=True).notes)


def test_samples_drawn_at_random_are_not_called_other_data(tmp_path: Path) -> None:
    task = toy(train=Noise())
    fit(task, run_dir=tmp_path, checkpoint_every=4, max_steps=4)
    assert "other conditions" not in "\n".join(fit(task, run_dir=tmp_path, resume=True, max_steps=5).notes)


class Noise(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.frombuffer(bytearray(os.urandom(12)), dtype=torch.uint8).float() / 255, index % 2


def test_fewer_steps_than_the_checkpoint_has_are_answered_with_its_weights_and_a_note(tmp_path: Path) -> None:
    before = fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=12)
    run = fit(toy(), run_dir=tmp_path, resume=True, max_steps=5)
    assert run.weights_sha256 == before.weights_sha256
    assert (
        "nothing is left to train: the checkpoint is of step 12 and 5 steps are asked for; these are its weights"
        in (run.notes)
    )


# ---------------------------------------------------------------- restarts


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2)])
def test_a_killed_rank_is_restarted_from_the_last_checkpoint(strategy: str, ranks: int, tmp_path: Path) -> None:
    whole = fit(toy(), strategy, ranks=ranks)
    eight = checkpoint_of(tmp_path / "run", 8)
    task = toy(loss=BreakingLoss(signal_self(signal.SIGKILL), call=10, unless=str(tmp_path / "struck"), after=eight))
    run = fit(task, strategy, ranks=ranks, run_dir=tmp_path / "run", checkpoint_every=4, max_restarts=1)
    assert run.status == "done"
    assert run.weights_sha256 == whole.weights_sha256
    assert run.losses == whole.losses
    assert run.restarts == 1
    fault = run.faults[0]
    assert (fault["kind"], fault["rank"], fault["step"]) == ("died", 1, 10)
    assert fault["resumed_step"] == 8
    assert fault["detected_seconds"] < DETECTED_SECONDS
    assert fault["resumed_seconds"] < RESUMED_SECONDS
    assert json.loads((tmp_path / "run" / "run.json").read_text())["faults"][0]["message"].startswith(
        "rank 1 of 2 died in step 10"
    )


def test_a_failure_that_repeats_itself_is_given_up(tmp_path: Path) -> None:
    task = toy(loss=BreakingLoss(_raise, call=6, rank=0))
    with pytest.raises(
        RankFailed, match=r"gave up after 1 restart: step 6 failed again without a newer checkpoint than step 0.*boom"
    ) as failure:
        fit(task, max_restarts=5)
    run = failure.value.run
    assert run is not None
    assert run.restarts == 1
    assert len(run.faults) == 2
    assert run.status == "failed"


def test_without_restarts_the_failure_is_the_answer() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 of 2 died in step 3"):
        fit(toy(loss=BreakingLoss(signal_self(signal.SIGKILL), call=3)), "ddp", ranks=2)


def _raise() -> None:
    raise RuntimeError("boom")


# ---------------------------------------------------------------- going on without a rank


@pytest.mark.parametrize(("strategy", "victim"), [("hogwild", 0), ("parameter_server:mode=async", 1)])
def test_the_others_go_on_without_a_dead_rank(strategy: str, victim: int) -> None:
    task = toy(loss=BreakingLoss(signal_self(signal.SIGKILL), call=5, rank=victim))
    run = fit(task, strategy, ranks=3, on_death="continue")
    assert run.status == "done"
    assert run.steps == 16
    assert [fault["rank"] for fault in run.faults] == [victim]
    assert run.samples == 240, "its share was taken over, no sample lost or used twice"
    assert len(run.per_rank) == 2
    assert run.test is not None
    assert len(run.epochs) == 2


def test_a_strategy_whose_ranks_wait_for_each_other_cannot_go_on() -> None:
    with pytest.raises(Refused, match=r"ddp cannot continue without a rank \(on_death=continue\); hogwild and"):
        fit(toy(), "ddp", ranks=2, on_death="continue")


# ---------------------------------------------------------------- torchrun


STOPPED = r"rank 0 has been in forward of step 9 for \d+ s \(its process is stopped\); rank 1 waits for it"
HANGS = r"rank 1 has been in forward of step 10 for \d+ s; rank 0 waits for it in communication(.|\n)*in sleep_forever"
KILLED = r"rank 1 of 2 died in step 10, forward: its process is gone"


@pytest.mark.parametrize(
    ("what", "rank", "call", "message"),
    [
        pytest.param("signal_self(19)", 0, 17, STOPPED, marks=pytest.mark.soak),  # eight calls are its evaluation's
        pytest.param("sleep_forever", 1, 10, HANGS, marks=pytest.mark.soak),
        pytest.param("signal_self(9)", 1, 10, KILLED, marks=pytest.mark.soak),
    ],
    ids=["stopped", "hangs", "killed"],
)
def test_torchruns_ranks_are_watched_and_its_restart_goes_on_from_the_last_checkpoint(
    what: str, rank: int, call: int, message: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(ROOT)!r}]
        import manyhands as mh
        from tests.breakable import BreakingLoss, signal_self, sleep_forever, toy
        task = toy(loss=BreakingLoss({what}, call={call}, rank={rank}, unless={str(tmp_path / "struck")!r}))
        run = mh.fit(task, "ddp", ranks=2, threads=1, progress=False, run_dir={str(tmp_path / "run")!r},
                     checkpoint_every=4, stall_seconds=2.5)
        """)
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        str(script),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = Run.load(tmp_path / "run")
    assert run.resumed_from is not None
    assert run.resumed_from["step"] in (4, 8), "a rank that was stopped may have been writing the second"
    assert run.restarts == 1
    assert re.search(message, done.stderr), done.stderr[-3000:]
    assert run.weights_sha256 == fit(toy(), "ddp", ranks=2).weights_sha256


def test_what_torchrun_starts_refuses_first_and_goes_on_only_from_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its restart took up the finished run of another day where it had died before its first checkpoint."""
    fit(toy(), run_dir=tmp_path, checkpoint_every=8)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match="torchrun started 1 processes but pipeline needs 9"):
        fit(toy(), "pipeline", ranks=9, run_dir=tmp_path, checkpoint_every=8)
    assert steps_in(tmp_path / "checkpoints") == [16, 8]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for path in published(tmp_path / "checkpoints"):  # written since torchrun began, before it started this process
        os.utime(path, (torchrun.BORN - 1, torchrun.BORN - 1))
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: torchrun.BORN - 2)
    again = fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=6)
    assert again.resumed_from is not None
    for path in published(tmp_path / "checkpoints"):
        os.utime(path, (1, 1))
    run = fit(toy(), run_dir=tmp_path, checkpoint_every=4, max_steps=6)
    assert run.resumed_from is None
    assert run.steps == 6
    assert steps_in(tmp_path / "checkpoints.before") == [16, 8]
