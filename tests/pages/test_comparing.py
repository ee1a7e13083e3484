"""Figures of runs beside each other: which is faster, what each is called, and the rows of a comparison."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from manyhands.pages.comparing import efficiency, names, relation, speedup
from manyhands.pages.comparison_table import columns, comparison_rows, legend
from manyhands.pages.figures import largest_phase, lost_share, seconds_to, spread
from manyhands.record.run import Run

Make = Callable[..., Run]


def test_steady_rounds_do_not_make_a_difference_of_a_percent_count(make: Make) -> None:
    assert relation(make("ddp", 101, rounds=[101.0, 101.0]), make("single", 100, rounds=[100.0, 100.0])) == "same"


def test_a_speed_measured_once_is_doubted(make: Make) -> None:
    once = make("ddp", 4300, rounds=None)
    assert spread(once) is None
    assert relation(once, make("single", 4000, rounds=None)) == "unclear"
    assert relation(make("ddp", 4600, rounds=None), make("single", 4000, rounds=None)) == "faster"


def test_more_rounds_do_not_mean_more_doubt(make: Make) -> None:
    steady = [100.0] * 7
    assert spread(make("ddp", 100, rounds=[*steady, 20.0])) == (100.0, 100.0)
    assert spread(make("ddp", 100, rounds=[100.0, 20.0, 110.0])) == (20.0, 110.0)


def test_figures(make: Make) -> None:
    base, run = make("single", 4000), make("ddp", 6000)
    assert speedup(run, base) == pytest.approx(1.5)
    assert efficiency(run, base) == pytest.approx(0.75)
    assert efficiency(run, make("single", 4000, threads=2)) is None
    assert speedup(run, None) is None
    assert speedup(make("ddp"), base) is None
    assert largest_phase(run) is None
    assert lost_share(run) is None
    assert lost_share(make("ddp", phases_ms={"load": 1.0, "communication": 2.0, "wait": 3.0, "update": 6.0})) == 0.5
    assert largest_phase(make("ddp", phases_ms={"wait": 3.0, "unheard of": 1.0, "load": None})) == ("wait", 0.75)
    assert spread(run) == (5940.0, 6060.0)


def test_seconds_to_a_target(make: Make) -> None:
    epochs = [{"seconds": 2.0, "test_accuracy": 0.8}, {"seconds": 3.0, "test_accuracy": 0.95}]
    assert seconds_to(make("ddp", 1, epochs=epochs), 0.9) == 5.0
    assert seconds_to(make("ddp", 1, epochs=epochs), 0.8) == 2.0
    assert seconds_to(make("ddp", 1, epochs=epochs), 0.99) is None
    assert seconds_to(make("ddp", 1, epochs=epochs), None) is None
    assert seconds_to(make("ddp", 1, epochs=[{"test_accuracy": 0.99}]), 0.9) is None


def test_names_tell_runs_apart(make: Make) -> None:
    assert names([make("single", 1), make("single", 1, threads=2), make("ddp", 1)]) == [
        "single (1 thread)",
        "single (2 threads)",
        "ddp",
    ]
    assert names([make("ddp", 1, task="mnist"), make("ddp", 1)]) == ["ddp (mnist)", "ddp (glyphs)"]
    assert names([make("ddp", 1, ranks=2), make("ddp", 1, ranks=4, precision="bf16")]) == [
        "ddp (2 ranks)",
        "ddp (4 ranks)",
    ]
    assert names([make("ddp", 1), make("ddp", 1)]) == ["ddp", "ddp #2"]


def test_the_rows_as_terminal_and_page_write_them(runs: list[Run]) -> None:
    rows = comparison_rows(runs, target=0.9)
    text = {row["label"]: {column.heading: column.text(row) for column in columns(rows, target=0.9)} for row in rows}
    assert text["ddp"] == {
        "strategy": "ddp",
        "ranks": "2",
        "threads": "1",
        "samples/s": "7,510 ±1 %",
        "speed-up": "1.56x",
        "efficiency": "78 %",
        "accuracy": "97.10 %",
        "to target": text["ddp"]["to target"],
        "memory": text["ddp"]["memory"],
        "exact": "yes",
        "lost": "14 %",
        "note": "-",
    }
    assert text["ddp"]["to target"].endswith(" s")
    assert text["ddp"]["memory"].endswith(" MiB")
    assert text["hogwild"]["exact"] == "no"
    assert text["parameter_server"]["exact"] == "-"
    assert text["single (1 thread)"]["efficiency"] == "-"
    assert text["parameter_server"]["samples/s"] == "-"
    assert text["parameter_server"]["note"].startswith("failed: rank 1 of 2 failed in step 17")
    assert [row["status"] for row in rows][-2:] == ["failed", "refused"]


def test_columns_nobody_needs_are_left_out(make: Make) -> None:
    rows = comparison_rows([make("single", 4000)])
    assert [column.heading for column in columns(rows)][-3:] == ["memory", "exact", "lost"]


def test_a_promise_is_marked_where_it_was_not_checked_and_denied_where_it_was_broken(make: Make) -> None:
    first = {"exact": True, "losses": [2.0]}
    rows = comparison_rows(
        [
            make("single", 4000, **first),
            make("ddp", 7000, exact_checked=True, **first),
            make("fsdp", 7000, exact_checked=False, **first),
            make("pipeline", 7000, exact=True, losses=[2.1]),
            make("locked", 7000, exact=False),
            make("hogwild", 7000),
        ]
    )
    assert [row["exact"] for row in rows] == ["yes", "yes", "yes?", "no", "no", None]
    assert legend(columns(rows), rows) == [
        "exact: ends with the weights that one process would train",
        "lost: share of each step lost to load, communication and wait",
        "yes?: promised, but it could not be checked before the start",
    ]
    assert len(legend(columns(rows[:2]), rows[:2])) == 2
