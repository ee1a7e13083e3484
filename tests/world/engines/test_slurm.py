"""Slurm as an engine, on a real Slurm of two nodes: what is refused, where processes go, and a fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from manyhands.errors import BadInput
from manyhands.world.engines import slurm_commands
from manyhands.world.engines.cluster import Place
from manyhands.world.engines.slurm import Slurm, counts, fewest
from manyhands.world.engines.slurm_commands import clean
from tests.conftest import Command, distance, make_task, quick_fit
from tests.slurm_cluster import SlurmCluster

# ---------------------------------------------------------------- what is refused, and where processes would run


@pytest.mark.parametrize(
    ("asked", "processes", "message"),
    [
        (Slurm(partition="gpu"), 2, 'Slurm has no partition "gpu"; there are: all, closed, short'),
        (
            Slurm(),
            9,
            r"9 processes were asked for but partition all has room for 8 \(2 nodes, a CPU for each process\)",
        ),
        (Slurm(nodes=1), 5, r"room for 4 \(1 node, a CPU for each process\); use fewer ranks"),
        (Slurm(nodes=3), 6, "3 nodes were asked for but partition all has 2"),
        (Slurm(time="banana"), 2, r"Slurm refuses the request: Invalid --time specification \(srun --nodes=1"),
        (Slurm(extra=["--gres=gpu:4"]), 2, "refuses the request: Invalid generic resource"),
        (Slurm(extra=["--mem=99999"]), 2, "refuses the request: Requested node configuration is not available"),
        (Slurm(extra=["--bogus"]), 2, "refuses the request: unrecognized option '--bogus'"),
    ],
)
def test_what_slurm_cannot_do_is_refused_before_anything_starts(
    slurm: SlurmCluster, asked: Slurm, processes: int, message: str
) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        asked.plan(processes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": 0}, r"nodes must be 1 or more \(found 0\)"),
        ({"extra": ["-N3"]}, "--nodes does not belong in extra; use nodes"),
        ({"extra": "--partition=gpu"}, "--partition does not belong in extra; use partition"),
    ],
)
def test_values_that_contradict_themselves_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Slurm(**fields)


def test_processes_go_to_the_fewest_nodes_or_evenly_to_those_asked_for(slurm: SlurmCluster) -> None:
    assert [place.processes for place in Slurm().plan(4)] == [4]
    assert [place.processes for place in Slurm().plan(5)] == [3, 3]
    room = Slurm(nodes=2).plan(3)
    assert [place.processes for place in Slurm(nodes=2).spread(3, room)] == [2, 1]
    assert [place.processes for place in Slurm().spread(2, Slurm().plan(8))] == [2, 0]


def test_without_slurm_on_the_machine_the_command_line_says_so(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, err = command("train", "glyphs:train=64,test=16", "ddp", "--ranks", "2", "--on", "slurm")
    assert (code, out) == (2, "")
    assert err == (
        "manyhands: there is no Slurm on this machine (sinfo was not found); start on a login node of the cluster, "
        "or leave out --on slurm\n"
    )


def test_a_controller_that_does_not_answer_is_not_waited_for(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sinfo itself tries for a minute."""
    monkeypatch.setattr(slurm_commands, "SECONDS", 0.5)
    monkeypatch.setenv("SLURM_CONF", "/nowhere")
    with pytest.raises(BadInput, match=r"Slurm does not answer: sinfo: .*; is its controller up \(scontrol ping\)\?"):
        Slurm().plan(2)


def test_a_program_that_srun_has_multiplied_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(BadInput, match=r"srun has started this program 4 times .* use srun --ntasks 1"):
        Slurm().plan(2)


def test_the_words_of_slurm() -> None:
    assert counts("4(x2),2", 3) == [4, 4, 2]
    assert fewest(8, [4, 4, 2]) == 2
    assert fewest(9, [4, 4, 2]) is None


def test_the_shape_of_the_job_around_us_does_not_reach_our_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM_NTASKS, SLURM_CPUS_PER_TASK and the like are wishes to srun; who we are and what we may use stays."""
    kept = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/x", "SLURM_ACCOUNT": "a", "SLURM_QOS": "q", "SLURM_JOB_NODELIST": "n1"}
    shape = ("SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_EXPORT_ENV")
    for name in (*kept, *shape, "SLURM_STEP_ID", "SLURM_CPU_BIND_TYPE", "SLURM_NNODES", "SLURM_TASKS_PER_NODE"):
        monkeypatch.setenv(name, kept.get(name, "3"))
    assert {name: value for name, value in clean().items() if name.startswith(("SLURM", "SRUN"))} == kept


# ---------------------------------------------------------------- inside a job


@pytest.fixture
def inside(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The surroundings of a batch script in a job of two nodes, which asked for tasks of another shape than ours."""
    number = re.findall(r"allocation (\d+)", slurm.said("salloc", "--no-shell", "--nodes=2", "--ntasks=2", "-c3"))[0]
    told = {"JOB_ID": number, "JOB_NODELIST": "n[1-2]", "JOB_CPUS_PER_NODE": "3(x2)", "JOB_PARTITION": "all"}
    shape = {
        "NTASKS": "2",
        "NPROCS": "2",
        "CPUS_PER_TASK": "3",
        "TASKS_PER_NODE": "1(x2)",
        "NNODES": "2",
        "EXPORT_ENV": "NONE",
    }
    for name, value in {**told, **shape}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    yield number
    slurm.said("scancel", number)


@pytest.mark.usefixtures("light", "impatient")
def test_inside_a_job_its_nodes_are_used_and_the_job_stays(slurm: SlurmCluster, inside: str) -> None:
    assert Slurm().plan(2) == [Place("n1", 3), Place("n2", 3)]
    with pytest.raises(BadInput, match=f"3 nodes were asked for but Slurm job {inside} has 2; use nodes=2"):
        Slurm(nodes=3).plan(3)
    with pytest.raises(BadInput, match=f"inside Slurm job {inside} of partition all, .* leave out partition=short"):
        Slurm(partition="short").plan(3)
    agents = Slurm().start(Slurm().plan(2), print)
    agents.close()
    assert f"{inside} RUNNING None" in slurm.jobs()


def test_a_job_that_is_over_is_not_taken_for_the_one_around_us(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that salloc has left behind still says so in its environment."""
    monkeypatch.setenv("SLURM_JOB_ID", "99999")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    with pytest.raises(BadInput, match="inside Slurm job 99999, but there is no such job now; unset SLURM_JOB_ID"):
        Slurm().plan(2)


# ---------------------------------------------------------------- fits


@pytest.mark.timeout(300)  # three programs import torch
def test_a_fit_on_two_nodes_is_the_fit_on_one(slurm: SlurmCluster, nothing_left: None) -> None:
    task = make_task(epochs=1)
    seen: list[int] = []
    run = quick_fit(task, "ddp", ranks=2, on="slurm:nodes=2", on_step=lambda figures: seen.append(figures["step"]))
    assert [entry["host"] for entry in run.per_rank] == ["n1", "n2"]
    assert seen == list(range(1, run.steps + 1))
    assert distance(run, quick_fit(task, "single")) < 1e-6
