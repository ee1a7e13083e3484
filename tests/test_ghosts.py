"""The benchmark of ghosts: it sees through other figures, and tells a claim that was reversed from one that is unclear."""

from __future__ import annotations

from benchmarks.ghosts import judged, rows_of, same_among

from manyhands.record.run import Run


def row(strategy: str, *rounds: float, **fields: object) -> Run:
    known = {
        "ranks": 1 if strategy == "single" else 2,
        "threads": 1,
        "batch_size": 32,
        "device": "cpu",
        "comparison": "a",
    }
    known |= {"samples_per_second": rounds[1], "rounds": list(rounds), "environment": {"cores": 2}}
    return Run("glyphs", strategy, **{**known, **fields})  # type: ignore[arg-type]


def test_comparisons_are_held_against_what_most_of_them_say() -> None:
    single = row("single", 99, 100, 101)
    slow = {"slow_rank": {"rank": 1, "phase": "load", "behind_ms": 3.0}}
    found = [
        judged("nothing", [single, row("ddp", 149, 150, 151)]),
        judged("burner", [single, row("ddp", 129, 130, 131, others_cores=0.4)]),
        judged("nothing", [single, row("ddp", 59, 60, 61, **slow)]),
        judged("burner", [single, row("ddp", 90, 130, 190)]),
    ]
    assert [one["same"] for one in rows_of(found)] == ["yes", "yes", "no", "no"]
    assert [one["reversed"] for one in rows_of(found)] == [0, 0, 1, 0]
    assert [one["unclear"] for one in rows_of(found)] == [0, 0, 0, 1]
    assert [one["ghosts"] for one in rows_of(found)] == ["none", "none", "ddp: rank 1 in load", "none"]
    assert [(one["busy"], one["others"]) for one in rows_of(found)][:2] == [("no", None), ("yes", 0.4)]
    assert same_among(found, "burner") == "1 of 2"
