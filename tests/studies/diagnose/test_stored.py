"""A diagnosis of a stored run: what its record shows, no experiments, and the command that makes some."""

from __future__ import annotations

from manyhands.record.run import Run
from manyhands.studies.diagnose.stored import diagnose_run
from tests.record.test_hints import record

FIELDS = {"bottleneck", "rank", "cost_ms", "step_ms", "experiments", "advice", "not_tried", "others_cores", "verdict"}


def test_a_slow_loader_is_named_without_a_promise() -> None:
    found = diagnose_run(record(phases={"load": 73.0}))
    assert set(found) == FIELDS
    assert (found["bottleneck"], found["cost_ms"], found["rank"], found["experiments"]) == ("loading", 73.0, None, [])
    assert [advice["speedup"] for advice in found["advice"]] == [None]
    assert found["advice"][0]["command"].endswith("--loader-workers 4")
    assert found["verdict"] == (
        "Loading the data takes 85 % of the step (73.0 of 85.5 ms): try --loader-workers 4. A record alone cannot tell more; "
        "`manyhands diagnose my_task.py ddp --ranks 2` measures what a change gains."
    )


def test_a_slow_rank_is_the_culprit() -> None:
    found = diagnose_run(record(slow_rank={"rank": 1, "phase": "load", "behind_ms": 8.0}))
    assert (found["bottleneck"], found["rank"], found["cost_ms"]) == ("straggler", 1, 8.0)


def test_a_healthy_run_and_one_without_figures() -> None:
    healthy = diagnose_run(record("single"))
    assert (healthy["bottleneck"], healthy["cost_ms"], healthy["advice"]) == ("none", None, [])
    assert healthy["verdict"].startswith(
        "Nothing in the record stands out. A record alone cannot tell more; `manyhands"
    )
    failed = diagnose_run(Run("my_task", "ddp", status="failed", ranks=2))
    assert (failed["bottleneck"], failed["step_ms"]) == ("none", None)
    assert failed["verdict"].startswith("The run failed and its record holds no figures of steps; `manyhands diagnose")


def test_a_script_has_no_task_to_measure() -> None:
    assert "docs/port.md" in diagnose_run(record("script"))["verdict"]
