"""The charts as data: what each shows of the runs, in which units, and what is left out."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.pages.chart import chart_data
from manyhands.pages.charts import comparison_charts
from manyhands.pages.figure import _tick, log_axis
from manyhands.pages.frontier_charts import frontier
from manyhands.pages.page import page
from manyhands.record.run import PHASES, Run
from tests.pages.test_page import data_of, words_of

Make = Callable[..., Run]
CHARTS = {
    "speed", "speed-accuracy", "speed-memory", "loss-time", "loss-steps", "accuracy", "phases", "timeline", "memory",
    "usage", "classes", "staleness",
}  # fmt: skip


def test_every_chart_of_a_comparison_is_there_with_units(runs: list[Run]) -> None:
    charts = {chart["id"]: chart for chart in data_of(page(runs))}
    assert set(charts) == CHARTS
    for key, chart in charts.items():
        titles = [chart["layout"][axis]["title"].get("text", "") for axis in ("xaxis", "yaxis")]
        rows_are_named = bool(chart["layout"]["yaxis"].get("ticktext"))
        assert titles[0], f"{key} has no unit on its horizontal axis"
        assert titles[1] or rows_are_named, f"{key} has no unit on its vertical axis"


def test_phases_keep_their_order_and_colours(runs: list[Run]) -> None:
    charts = {chart["id"]: chart for chart in data_of(page(runs))}
    for key in ("phases", "timeline"):
        bars = [trace for trace in charts[key]["data"] if trace["type"] == "bar" and trace["name"] != "overlapped"]
        drawn = [trace["name"] for trace in bars]
        assert drawn == [phase for phase in PHASES if phase in drawn]
        colours = {trace["name"]: trace["marker"]["color"] for trace in bars}
        assert colours == {phase: f"var(--phase-{phase})" for phase in drawn}


def test_phases_of_the_chart_are_those_of_the_record(runs: list[Run]) -> None:
    chart = next(chart for chart in data_of(page(runs)) if chart["id"] == "phases")
    *bars, hidden = chart["data"]
    total = sum(trace["x"][2] for trace in bars)
    assert runs[2].phases_ms is not None
    assert total == pytest.approx(sum(runs[2].phases_ms.values()), rel=1e-3)
    assert (hidden["name"], hidden["x"], hidden["y"]) == ("overlapped", [1.6], [2.4])  # of ddp, beside its row
    begins = sum(runs[2].phases_ms[name] for name in ("load", "augment", "forward"))
    assert hidden["base"] == [pytest.approx(begins, rel=1e-3)]


def test_the_steps_of_a_tiny_model_are_not_all_zeros(make: Make) -> None:
    """Phases of hundredths of a millisecond were labelled 0.0."""
    for scale, label in ((1.0, "1.0"), (0.1, "0.10"), (0.01, "0.010")):
        run = make("single", phases_ms=dict.fromkeys(PHASES, 0.0) | {"forward": scale, "backward": 2 * scale})
        chart = next(chart for chart in data_of(page([run])) if chart["id"] == "phases")
        assert label in [text for trace in chart["data"] for text in trace["text"]]


def test_overlapped_communication_gets_a_bar_of_its_own(runs: list[Run]) -> None:
    def widths(shown: list[Run]) -> set[float]:
        chart = next(chart for chart in data_of(page(shown)) if chart["id"] == "timeline")
        return {width for trace in chart["data"] if trace["type"] == "bar" for width in trace["width"]}

    assert len(widths(runs[2:3])) == 2  # ddp hides some communication behind backward
    assert len(widths(runs[3:4])) == 1  # hogwild does not


def test_one_timeline_shows_about_three_steps_of_every_run_on_one_scale(runs: list[Run]) -> None:
    """Each run had a chart with its own scale, so that a slow step looked like a fast one; and of some there were four steps."""
    timeline = next(chart for chart in data_of(page(runs)) if chart["id"] == "timeline")
    rows = timeline["layout"]["meta"]["rows"]
    assert [row["run"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all(above["end"] == below["start"] for above, below in itertools.pairwise(rows))
    *bars, marks = timeline["data"]
    for row, run in zip(rows, runs, strict=False):
        ends = [
            start + length
            for bar in bars
            for place, start, length in zip(bar["y"], bar["base"], bar["x"], strict=True)
            if row["start"] < place < row["end"]
        ]
        assert max(ends) == pytest.approx(3 * sum((run.phases_ms or {}).values()), rel=0.05)
        assert sum(row["start"] < place < row["end"] for place in marks["y"]) >= 3 * run.ranks - 1
    assert timeline["layout"]["yaxis"]["ticktext"] == [f"rank {rank}" for run in runs[:6] for rank in range(run.ranks)]


def test_of_many_ranks_a_timeline_shows_some_and_the_slow_one(make: Make) -> None:
    run = make("ddp", 100, ranks=64, slow_rank={"rank": 50, "phase": "load", "behind_ms": 3.0})
    run.timeline = [{"rank": rank, "step": 4, "phase": "load", "start_ms": 0.0, "end_ms": 1.0} for rank in range(64)]
    chart = next(chart for chart in data_of(page([run])) if chart["id"] == "timeline")
    shown = chart["layout"]["yaxis"]["ticktext"]
    assert (shown[0], shown[-1], len(shown)) == ("rank 0", "rank 63", 9)
    assert "rank 50" in shown
    assert "Of more than 8 ranks only some are shown, a slow one among them." in words_of(page([run]))


def test_a_timeline_shows_ranks_at_the_same_time_even_when_their_steps_are_not(make: Make) -> None:
    run = make("hogwild", 100)
    run.timeline = [
        {
            "rank": rank,
            "step": step,
            "phase": "forward",
            "start_ms": 40 * rank + 10 * step,
            "end_ms": 40 * rank + 10 * step + 10,
        }
        for rank in range(2)
        for step in range(6)
    ]  # rank 0 is recorded from 0 to 60 ms, rank 1 from 40 to 100
    chart = next(chart for chart in data_of(page([run])) if chart["id"] == "timeline")
    bars, marks = chart["data"]
    first, second = chart["layout"]["yaxis"]["tickvals"]
    starts = [(first, 0), (first, 10), (second, 0), (second, 10)]
    assert sorted(zip(bars["y"], bars["base"], strict=True)) == starts
    assert sorted(zip(marks["y"], marks["customdata"], strict=True)) == [
        (first, 4),
        (first, 5),
        (second, 0),
        (second, 1),
    ]


def test_ranks_never_recorded_together_are_all_shown(make: Make) -> None:
    run = make("hogwild", 100)
    run.timeline = [
        {"rank": rank, "step": 0, "phase": "forward", "start_ms": 50 * rank, "end_ms": 50 * rank + 10}
        for rank in range(2)
    ]
    chart = next(chart for chart in data_of(page([run])) if chart["id"] == "timeline")
    assert chart["data"][0]["base"] == [0, 50]


def test_a_server_is_no_rank(make: Make) -> None:
    spans = [{"rank": rank, "step": 4, "phase": "wait", "start_ms": 0.0, "end_ms": 1.0} for rank in range(3)]
    run = make("parameter_server", 100)
    run.timeline = spans
    chart = next(chart for chart in data_of(page([run])) if chart["id"] == "timeline")
    assert chart["layout"]["yaxis"]["ticktext"] == ["rank 0", "rank 1", "server 0"]


def test_gpus_have_their_use_and_memory(make: Make) -> None:
    gpus = [{"gpu": 0, "mean_percent": 41.0, "memory_bytes": 3 * 2**30}]
    cores = [{"core": core, "mean_percent": 10.0} for core in range(64)]
    text = page([make("ddp", 100, usage={"cores": cores, "gpus": gpus})])
    chart = next(chart for chart in data_of(text) if chart["id"] == "usage")
    assert chart["data"][0]["x"][-1] == "GPU 0"
    assert chart["data"][0]["z"][0][-1] == 41.0
    assert "GPU 0 3.00 GiB" in words_of(text)


def test_names_break_after_their_separators(runs: list[Run]) -> None:
    """`pipeline:schedule=g` / `pipe` stood in the table, and names of three lines over each other beside the bars."""
    runs[2].options = {"compress": "bf16", "some_long_option": "another_long_value", "more": 1}
    text = page(runs)
    assert "pipeline:<wbr>chunks=<wbr>4,<wbr>schedule=<wbr>1f1b" in text
    charts = {chart["id"]: chart for chart in data_of(text)}
    layout = charts["phases"]["layout"]
    name = layout["yaxis"]["ticktext"][2].split("<br>")
    assert name == ["ddp:compress=bf16,", "some_long_option=", "another_long_value,", "more=1"]
    assert layout["height"] >= 4 * 16 * len(layout["yaxis"]["ticktext"])  # each row has room for four lines
    assert charts["loss-time"]["layout"]["legend"]["entrywidth"] >= 6.5 * max(map(len, name))


def test_log_ticks_are_few_and_easy_to_read() -> None:
    """Plotly writes every digit of every power of ten, in two sizes."""
    cases = {
        (0.1, 2.3): "0.1 0.2 0.5 1 2",
        (3, 6): "3 4 5 6",
        (1e-5, 2e2): "10<sup>-5</sup> 10<sup>-4</sup> 0.001 0.01 0.1 1 10 100",
    }
    for (low, high), ticks in cases.items():
        axis = log_axis([low, high, 0.0, -1.0])
        shown = [text for tick, text in zip(axis["tickvals"], axis["ticktext"], strict=True) if low <= tick <= high]
        assert shown == ticks.split()
    assert _tick(2e6) == "2·10<sup>6</sup>"


def test_the_frontier_is_ringed_named_and_in_the_table(runs: list[Run]) -> None:
    text = page(runs)
    chart = next(chart for chart in data_of(text) if chart["id"] == "speed-accuracy")
    ring = chart["data"][0]
    # hogwild is fastest; of the accurate ones ddp and one process with two threads are within 3 % of each other
    assert (ring["name"], ring["meta"], ring["x"]) == ("frontier", [1, 2, 3], [7450, 7510, 8350])
    assert "Ringed, on the frontier: single (2 threads); ddp; hogwild. No other run beats them" in words_of(text)
    assert re.search(r'<th scope="row">locked</th><td>5,100</td><td>97.00 %</td><td>no</td>', text)
    assert re.search(r'<th scope="row">hogwild</th><td>8,350</td><td>95.80 %</td><td>yes</td>', text)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=12))
def test_a_frontier_is_never_empty(points: list[tuple[int, int]]) -> None:
    """With differences that count as none, three runs might beat each other in a circle; sums show that they cannot."""
    kept = frontier(points)
    assert points.index(max(points, key=sum)) in kept
    for side in (0, 1):
        best = max(points, key=lambda point: (point[side], point[1 - side]))
        if all(best[side] > other[side] + 1 for other in points if other != best):  # clearly the best in one figure
            assert points.index(best) in kept


def test_runs_that_may_not_be_compared_have_a_frontier_each(make: Make) -> None:
    runs = [
        make("ddp", speed, task=task, test={"accuracy": good})
        for task, speed, good in (("a", 100, 0.9), ("a", 50, 0.8), ("b", 10, 0.5))
    ]
    text = page(runs)
    rings = [trace["meta"] for trace in next(c for c in data_of(text) if c["id"] == "speed-accuracy")["data"][:2]]
    assert rings == [[0], [2]]
    assert "No other run of its task, batch size and machine beats them" in words_of(text)


def test_charts_are_plain_values_each_with_its_place_on_the_page(runs: list[Run]) -> None:
    charts = [chart for section in comparison_charts(runs).values() for chart in section]
    made, text = chart_data(charts), page(runs)
    assert json.loads(json.dumps(made, allow_nan=False)) == made == data_of(text)
    for chart in made:
        assert f'id="chart-{chart["id"]}"' in text


def test_a_curve_of_many_steps_is_thinned_by_means(make: Make) -> None:
    run = make("ddp", 100, losses=[float(step % 2) for step in range(96_000)], seconds=50.0)
    chart = next(chart for chart in data_of(page([run])) if chart["id"] == "loss-time")
    assert len(chart["data"][0]["x"]) <= 60
    assert set(chart["data"][0]["y"]) == {0.5}
    assert chart["data"][0]["x"][-1] == 50.0


def test_losses_that_are_not_known_are_left_out_of_a_window(make: Make) -> None:
    """A window is summed at once: three million steps kept the live page, and everybody else's, for minutes."""
    losses = [None if step % 2 else 3.0 for step in range(120)]
    run = make("ddp", 100, losses=[*losses, None, None], seconds=12.2)
    for place, last in (("loss-steps", 120.0), ("loss-time", 12.0)):
        chart = next(chart for chart in data_of(page([run])) if chart["id"] == place)
        assert set(chart["data"][0]["y"]) == {3.0}
        assert chart["data"][0]["x"][-1] == pytest.approx(last)


def test_loss_by_time_follows_the_epochs(make: Make) -> None:
    epochs = [{"seconds": 1.0, "samples": 200}, {"seconds": 3.0, "samples": 200}]  # the second one was slower
    run = make("ddp", 100, losses=[4.0, 3.0, 2.0, 1.0], epochs=epochs, batch_size=128, seconds=4.0)
    chart = next(chart for chart in data_of(page([run])) if chart["id"] == "loss-time")
    assert chart["data"][0]["x"] == [0.5, 1.0, 2.5, 4.0]


def test_many_ranks_and_classes_are_cut_to_what_fits(make: Make) -> None:
    ranks = [{"rank": rank, "peak_memory_bytes": (rank + 1) * 2**30} for rank in range(64)]
    classes = {f"class {number}": number / 100 for number in range(100)}
    run = make("ddp", 100, ranks=64, per_rank=ranks, test={"accuracy": 0.5, "per_class": classes})
    charts = {chart["id"]: chart for chart in data_of(page([run]))}
    assert charts["memory"]["data"][0]["x"] == [1, 33, 64]
    assert charts["classes"]["data"][0]["x"] == [f"class {number}" for number in range(20)]
    assert "Of 100 classes, the 20 hardest are shown." in words_of(page([run]))


def test_a_long_histogram_of_staleness_is_binned(make: Make) -> None:
    run = make("hogwild", 100, staleness={"mean": 50.0, "max": 99, "histogram": [1] * 100})
    chart = next(chart for chart in data_of(page([run])) if chart["id"] == "staleness")
    assert len(chart["data"][0]["x"]) <= 40
    assert sum(chart["data"][0]["y"]) == pytest.approx(100, abs=0.1)


def test_the_accuracies_of_many_epochs_are_thinned(make: Make) -> None:
    """A fit of 10,000 epochs had as many marks on its page."""
    epochs = [{"epoch": number, "test_accuracy": number / 10_000} for number in range(1, 10_001)]
    text = page([make("ddp", 100, epochs=epochs)])
    chart = next(chart for chart in data_of(text) if chart["id"] == "accuracy")
    assert 100 <= len(chart["data"][0]["x"]) <= 200
    assert (chart["data"][0]["x"][-1], chart["data"][0]["y"][-1]) == (10_000, 100)
    assert "At most 200 epochs are shown." in words_of(text)
