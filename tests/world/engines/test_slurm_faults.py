"""What can happen to a fit on Slurm's nodes, each tried on a real Slurm of two: killed, frozen, cancelled, out of time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.errors import RankFailed
from tests.conftest import ROOT, make_task, quick_fit
from tests.slurm_cluster import NODES, SlurmCluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]
STEP = 12  # in which something happens
NEAR = (5, 10, 15)  # checkpoints: ranks go on while it happens, and while one is written
JOB = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 --requeue --open-mode=append --output=out.txt
{python} -m manyhands train glyphs:train=512,test=64 ddp --ranks 2 --on slurm --epochs 3 --checkpoint-every 4 --threads 1
"""


def fit(then: Callable[[], Any] = lambda: None, **keywords: Any) -> mh.Run:
    """A fit over both nodes, with a step so slow that `then` happens in the middle of it."""

    def on_step(figures: Any) -> None:
        time.sleep(0.05)
        if figures["step"] == STEP and not done:
            done.append(True)
            then()

    done: list[bool] = []
    kept = {"run_dir": "run", "checkpoint_every": 5, "on": mh.Slurm(nodes=2), **keywords}
    return quick_fit(make_task(epochs=1), "ddp", ranks=2, on_step=on_step, **kept)


def unbroken() -> str | None:
    return quick_fit(make_task(epochs=1), "ddp:transport=gloo", ranks=2).weights_sha256


def is_gone_for(cluster: SlurmCluster, seconds: float) -> Callable[[], None]:
    """The node's machine fails, with all that runs there; another takes its place after a while."""

    def lose() -> None:
        cluster.signal_node("n2", signal.SIGKILL)
        threading.Timer(seconds, cluster.start_node, ["n2"]).start()

    return lose


def test_a_lost_node_is_restarted_from_the_last_checkpoint(slurm: SlurmCluster) -> None:
    run = fit(is_gone_for(slurm, 8), max_restarts=1)
    (fault,) = run.faults
    assert (fault["host"], run.restarts) == ("n2", 1)
    assert fault["resumed_step"] in NEAR
    assert fault["detected_seconds"] < 60
    assert run.weights_sha256 == unbroken()


def test_a_lost_node_ends_the_run_by_name(slurm: SlurmCluster) -> None:
    with pytest.raises(RankFailed, match=r"host n2 is lost \(.*\), with rank 1 in step \d+") as failure:
        fit(is_gone_for(slurm, 1))
    assert failure.value.host == "n2"


def test_a_slurmd_that_dies_alone_is_not_missed(slurm: SlurmCluster) -> None:
    run = fit(slurm.daemons["n2"].kill)
    assert run.faults == []
    assert run.weights_sha256 == unbroken()


def test_a_frozen_node_is_noticed_and_waited_for(slurm: SlurmCluster, capfd: pytest.CaptureFixture[str]) -> None:
    def freeze() -> None:
        slurm.signal_node("n2", signal.SIGSTOP)
        threading.Timer(30, slurm.signal_node, ["n2", signal.SIGCONT]).start()

    run = fit(freeze, max_restarts=1)
    (fault,) = run.faults
    assert fault["host"] == "n2"
    assert fault["resumed_step"] in NEAR
    assert "not heard of for" in fault["message"]
    assert "waits in the queue" in capfd.readouterr().err
    assert run.weights_sha256 == unbroken()


def test_a_cancelled_job_is_called_so(slurm: SlurmCluster) -> None:
    with pytest.raises(RankFailed, match=r"host n\d is lost \(Slurm job \d+ was cancelled\)"):
        fit(lambda: slurm.said("scancel", "--user=root"))


def test_a_time_limit_is_called_so(slurm: SlurmCluster) -> None:
    """Slurm counts in minutes."""
    with pytest.raises(RankFailed, match=r"host n\d is lost \(the time limit of Slurm job \d+ has passed\)"):
        fit(lambda: time.sleep(80), on=mh.Slurm(nodes=2, time="1"))


def test_ctrl_c_gives_the_nodes_back(slurm: SlurmCluster) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(lambda: os.kill(os.getpid(), signal.SIGINT))


def test_a_killed_caller_leaves_nothing_on_the_nodes(slurm: SlurmCluster) -> None:
    words = ["-m", "manyhands", "train", "glyphs", "ddp", "--ranks", "2", "--on", "slurm:nodes=2", "--threads", "1"]
    with subprocess.Popen([sys.executable, *words, "--run-dir", "run"], env=surroundings()) as caller:
        try:
            slurm.wait_for(Path("run/live.json").exists, "the first step", 200)
        finally:
            caller.kill()
    for folder in Path.cwd().glob(".manyhands-*"):
        shutil.rmtree(folder)  # there is nobody left who could


def test_a_requeued_job_goes_on(slurm: SlurmCluster) -> None:
    """A batch script with `--on slurm` on the job's own nodes, put back into the queue in the middle."""
    Path("job.sh").write_text(JOB.format(python=sys.executable))
    number = slurm.said("sbatch", "--parsable", "job.sh", **surroundings()).strip()
    slurm.wait_for(lambda: len(list(Path.cwd().glob("runs/*/checkpoints/step-*"))) > 0, "a checkpoint", 200)
    slurm.said("scontrol", "requeue", number)
    slurm.wait_for(lambda: f"{number} PENDING BeginTime" in slurm.jobs(), "the job back in the queue")
    slurm.said("scontrol", "update", f"jobid={number}", "starttime=now")  # else Slurm lets two minutes pass
    slurm.wait_for(lambda: f"{number} COMPLETED None" in slurm.jobs("all"), "its end", 200)
    (folder,) = Path("runs").iterdir()
    run = mh.Run.load(folder)
    assert (run.status, run.restarts) == ("done", 1)
    assert run.resumed_from is not None
    assert folder.name.startswith(f"slurm-{number}-")
    task = mh.load_task("glyphs:train=512,test=64")
    whole = mh.fit(task, "ddp:transport=gloo", ranks=2, epochs=3, threads=1, progress=False)
    assert run.weights_sha256 == whole.weights_sha256


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def test_nothing_runs_on_an_idle_cluster(slurm: SlurmCluster) -> None:
    """What the other tests count on finds work where there is some."""
    with subprocess.Popen(["srun", "-N2", "-n2", "sleep", "30"], stderr=subprocess.DEVNULL) as job:
        slurm.wait_for(lambda: len(slurm.work()) >= len(NODES), "work on both nodes")
        job.terminate()
