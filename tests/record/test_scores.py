"""Which forecast a run is held against, what its score says, and what scores say together."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.record.forecast import Forecast
from manyhands.record.score_summary import picks, summary
from manyhands.record.scores import scored
from manyhands.record.spread import quantile, trimmed
from tests.record.forecast_runs import HERE, at, comparison, entry, forecast, run


def test_a_score_says_how_far_off_a_forecast_was() -> None:
    made = forecast(speed=900.0, memory_bytes=210, basis="measured")
    ranks = [{"rank": 0, "peak_memory_bytes": 100}, {"rank": 1, "peak_memory_bytes": 200}, {"rank": 2}]
    (found,) = scored([entry(made)], [run(speed=1000.0, per_rank=ranks)])
    assert (found.forecast, found.measured, found.basis) == (made, 1000.0, "measured")
    assert (found.error, found.memory_error) == pytest.approx((-0.1, 0.05))
    assert found.held is False
    assert found.record() == {
        "task": "glyphs", "strategy": "ddp", "ranks": 2, "threads": 1, "forecast": 900.0,
        "interval": [pytest.approx(810.0), pytest.approx(990.0)], "measured": 1000.0, "error": pytest.approx(-0.1),
        "held": False, "memory_bytes": 210, "peak_memory_bytes": 200, "memory_error": pytest.approx(0.05),
        "basis": "measured", "made": "2026-03-02T09:59:00+00:00", "started": "2026-03-02T10:00:00+00:00",
        "comparison": None, "folder": None,
    }  # fmt: skip


def test_what_is_not_known_is_not_scored() -> None:
    (found,) = scored([entry(forecast(interval=None))], [run()])
    assert (found.held, found.memory_error) == (None, None)
    (found,) = scored([entry(forecast(memory_bytes=0))], [run(per_rank=[{"rank": 0, "peak_memory_bytes": 0}])])
    assert found.memory_error is None


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "mnist"}, {"batch_size": 64}, {"accumulate": 2}, {"precision": "bf16"}, {"device": "cuda"},
        {"environment": {**HERE, "cpu": "Another"}}, {"environment": {**HERE, "gpu": "One"}},
        {"environment": {**HERE, "cores": 4}}, {"environment": {**HERE, "torch": "2.11.0"}}, {"environment": {}},
        {"when": 1}, {"made": forecast("hogwild")}, {"made": forecast("ddp:bucket_mb=2")}, {"made": forecast(ranks=4)},
        {"made": forecast(threads=2)}, {"made": forecast(hosts=2)}, {"made": forecast(batch_size=64)},
        {"made": forecast(speed=None)}, {"made": forecast(feasible=False)}, {"made": forecast(speed=0.0)},
        {"made": forecast(speed=-1.0)}, {"made": forecast(speed=1e-300)}, {"device": "cpu,cuda:0"},
    ],
    ids=str,
)  # fmt: skip
def test_a_forecast_for_something_else_does_not_count(changes: dict[str, Any]) -> None:
    assert scored([entry(**changes)], [run()]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed"}, {"status": "refused"}, {"status": "stopped"}, {"speed": None}, {"speed": 0.0},
        {"started": None}, {"started": "some day"}, {"environment": {}}, {"accumulate": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_run_without_an_outcome_has_no_score(changes: dict[str, Any]) -> None:
    assert scored([entry(), entry(environment={})], [run(**changes)]) == []


@pytest.mark.parametrize(
    ("made", "measured"),
    [
        ({"when": 0}, {}),  # in the very second
        ({"made": forecast(threads=1)}, {}),
        ({"made": forecast(threads=2)}, {"threads": None}),
        ({"made": forecast(batch_size=64)}, {"batch_size": 64}),  # its own counts
        ({"environment": {**HERE, "python": "3.13", "system": "Linux 7"}}, {}),
        ({"device": "cuda"}, {"device": "cuda", "devices": ["cuda:0", "cuda:1"]}),
        ({"device": "cpu,cuda:0"}, {"devices": ["cpu", "cuda:0"]}),
        ({"made": forecast("pipeline:schedule=gpipe,chunks=8")}, {"strategy": "pipeline", "options": {"chunks": 8, "schedule": "gpipe"}}),
        ({"made": forecast(hosts=2)}, {"per_rank": [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}]}),
        ({}, {"started": "2026-03-02T10:00:00"}),
        ({}, {"started": "2026-03-02T12:00:00+02:00"}),
    ],
    ids=str,
)  # fmt: skip
def test_the_same_job_on_the_same_machine_counts(made: dict[str, Any], measured: dict[str, Any]) -> None:
    assert len(scored([entry(**made)], [run(**measured)])) == 1


def test_the_latest_forecast_before_the_start_counts() -> None:
    entries = [entry(forecast(speed=speed), when) for speed, when in ((3.0, -1), (2.0, -2), (4.0, 1), (1.0, -3))]
    assert [one.forecast_speed for one in scored(entries, [run()])] == [3.0]
    assert [one.forecast_speed for one in scored([*entries, entry(forecast(speed=5.0))], [run()])] == [5.0]
    later, earlier = run(started=at(2).isoformat()), run(started=at(-2.5).isoformat())
    assert [one.forecast_speed for one in scored(entries, [later, earlier])] == [4.0, 1.0]


def test_a_forecast_that_ruled_a_run_out_replaces_an_earlier_one() -> None:
    assert scored([entry(), entry(Forecast("ddp", 2, feasible=False, reason="memory"), -0.5)], [run()]) == []


def test_nothing_is_summarised_as_nothing() -> None:
    assert scored([], [run()]) == scored([entry()], []) == []
    assert summary([]) == {
        "overall": {
            "count": 0, "median_error": None, "p90_error": None, "bias": None, "intervals": 0, "held": 0, "coverage": None,
            "memory_count": 0, "median_memory_error": None, "best": {"comparisons": 0, "strict": 0, "within_noise": 0},
        },
        "by_strategy": {},
    }  # fmt: skip


def test_scores_together() -> None:
    entries = [
        entry(forecast("ddp")),
        entry(forecast("hogwild", memory_bytes=90)),
        entry(forecast("single", interval=None)),
    ]
    runs = [
        run("ddp", 1000 / 1.02), run("ddp", 1000 / 0.96), run("ddp", 1000 / 1.5),
        run("hogwild", 800.0, per_rank=[{"rank": 0, "peak_memory_bytes": 100}]), run("single", 1000.0),
    ]  # fmt: skip
    found = summary(scored(entries, runs))
    overall = found["overall"]
    assert (overall["count"], overall["intervals"], overall["held"], overall["coverage"]) == (5, 4, 2, 0.5)
    assert (overall["median_error"], overall["bias"]) == pytest.approx((0.04, 0.02))
    assert overall["p90_error"] == pytest.approx(0.25 + 0.6 * 0.25)
    assert (overall["memory_count"], overall["median_memory_error"]) == (1, pytest.approx(0.1))
    assert list(found["by_strategy"]) == ["ddp", "hogwild", "single"]
    assert (found["by_strategy"]["ddp"]["count"], found["by_strategy"]["ddp"]["held"]) == (3, 2)
    assert found["by_strategy"]["single"]["coverage"] is None


def test_the_best_is_picked_or_one_as_fast() -> None:
    entries = [entry(forecast(name, speed)) for name, speed in (("single", 500.0), ("ddp", 900.0), ("hogwild", 1000.0))]
    runs = [
        *comparison("right", single=500.0, ddp=800.0, hogwild=900.0),
        *comparison("noise", single=500.0, ddp=905.0, hogwild=900.0),
        *comparison("wrong", single=500.0, ddp=1000.0, hogwild=900.0),
        *comparison("without", single=500.0, locked=1000.0),  # nobody forecast locked: one scored row is no choice
        run("ddp", 2000.0),  # of no comparison
    ]
    scores = scored(entries, runs)
    assert [(picked.run.strategy, fastest.run.strategy) for picked, fastest in picks(scores)] == [
        ("hogwild", "hogwild"),
        ("hogwild", "ddp"),
        ("hogwild", "ddp"),
    ]
    found = summary(scores)
    assert found["overall"]["best"] == {"comparisons": 3, "strict": 1, "within_noise": 2}
    assert found["by_strategy"]["hogwild"]["best"] == {"comparisons": 1, "strict": 1, "within_noise": 1}
    assert found["by_strategy"]["ddp"]["best"] == {"comparisons": 2, "strict": 0, "within_noise": 1}
    assert found["by_strategy"]["single"]["best"]["comparisons"] == 0


def test_without_rounds_only_the_fastest_is_best() -> None:
    entries = [entry(forecast("ddp", 900.0)), entry(forecast("hogwild", 1000.0))]
    rows = [run("ddp", 901.0, comparison="x"), run("hogwild", 900.0, comparison="x")]
    assert summary(scored(entries, rows))["overall"]["best"] == {"comparisons": 1, "strict": 0, "within_noise": 0}


def test_quantiles() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.25, 0.5, 0.9, 1.0)] == pytest.approx(
        [1, 1.5, 2, 2.8, 3]
    )
    assert quantile([7.0], 0.9) == 7.0
    assert quantile([], 0.5) is None
    assert trimmed([9.0, *[5.0] * 6, 1.0]) == [5.0] * 6
