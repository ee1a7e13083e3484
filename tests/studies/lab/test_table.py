"""The finished table: medians, ratios seed by seed, lines of curves."""

from manyhands.record.run import Run
from manyhands.studies.lab.experiment import Column, Part
from manyhands.studies.lab.table import Row, Table, as_data, by_epoch, over, read_figures, shown

from .tiny import QUICK, task, tiny


def row(label: str, *seconds: float, **fields: object) -> Row:
    part = Part(label, task, published={"seconds": 3.0} if label == "a" else {})
    return Row(part, [], {"seconds": list(seconds)}, **fields)  # type: ignore[arg-type]


def table(*rows: Row) -> Table:
    return Table(tiny(), QUICK, rows)


def test_ratios_are_taken_seed_by_seed():
    found = table(row("a", 4.0, 9.0), row("b", 2.0, 3.0)).ratio("seconds", "a", "b")
    assert found == (2.5, 2.0, 3.0)


def test_a_seed_without_a_figure_shifts_none_of_the_others():
    """Seed 1 never reached the accuracy: the time of seed 2 was divided by that of seed 1 of the other row."""
    upper = row("a", 4.0, 30.0, seeds={"seconds": [0, 2]})
    assert table(upper, row("b", 2.0, 1.0, 10.0)).ratio("seconds", "a", "b") == (2.5, 2.0, 3.0)


def test_what_was_not_measured_has_no_ratio_and_no_figure():
    made = table(row("a", 4.0), row("b"), row("zero", 0.0))
    assert [made.ratio("seconds", "a", other) for other in ("b", "zero", "c")] == [None, None, None]
    assert (made.figure("a", "seconds"), made.figure("b", "seconds"), made.figure("c", "seconds")) == (4.0, None, None)
    assert [one.label for one in made.measured("seconds")] == ["a", "zero"]
    assert (made["b"].span("seconds"), made["a"].span("seconds")) == (None, (4.0, 4.0))


def test_columns_see_the_runs_of_their_own_seed():
    runs = {seed: Run("t", "single", seconds=float(seed + 1)) for seed in (0, 2)}
    others = {seed: {"large": Run("t", "single", seconds=10.0 * (seed + 1))} for seed in (0, 2)}
    columns = (
        Column(
            "share", "share", lambda run, beside: beside["large"].seconds / run.seconds if run.seconds > 1 else None
        ),
        Column("steps", "steps", lambda run, beside: run.steps),
    )
    assert read_figures(columns, runs, others) == (
        {"share": [10.0], "steps": [0.0, 0.0]},
        {"share": [2], "steps": [0, 2]},
    )


def test_lines_by_epoch_have_the_median_and_both_ends():
    runs = [Run("t", "single", epochs=[{"epoch": 1, "loss": loss}, {"epoch": 2, "loss": None}]) for loss in (1.0, 3.0)]
    [line] = by_epoch(table(Row(Part("a", task), runs, {}), row("b")), "loss", 1.0)
    assert (line.name, line.points) == ("a", [(1.0, 2.0, 1.0, 3.0)])


def test_lines_over_rows_leave_out_what_is_not_there():
    rows = [(1, row("a", 4.0, 6.0)), (2, row("b"))]
    assert over(rows, "seconds", "ours").points == [(1.0, 5.0, 4.0, 6.0)]
    published = over(rows, "seconds", "ours", published=True)
    assert (published.name, published.points) == ("ours (published)", [(1.0, 3.0, 3.0, 3.0)])


def test_a_row_as_data():
    assert as_data(row("a", 4.0, 6.0, problem="why", failed=True)) == {
        "row": "a",
        "published": {"seconds": 3.0},
        "measured": {"seconds": {"median": 5.0, "lowest": 4.0, "highest": 6.0, "seeds": 2}},
        "problem": "why",
        "failed": True,
    }
    assert (shown(None, ".2f"), shown(0.5, ".1%")) == ("-", "50.0%")
