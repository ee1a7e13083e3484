"""How strategies scale: which rows belong together, what is ideal, where more ranks stop paying and why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from manyhands.pages import report, scaling_sentences
from manyhands.pages.comparison_table import comparison_rows
from manyhands.pages.page import page
from manyhands.pages.scaling import scalings
from manyhands.pages.words import conclusion, sentences
from manyhands.record.run import Run

Make = Callable[..., Run]
Scaled = Callable[..., list[Run]]
FAST = {1: 1000.0, 2: 1800.0, 4: 1900.0}


def with_phases(runs: list[Run], **by_ranks: dict[int, float]) -> list[Run]:
    """The time of phases in every round, by ranks."""
    for run in runs:
        times = {name: values[run.ranks] for name, values in by_ranks.items() if run.ranks in values}
        if times and run.strategy != "single":
            run.round_phases_ms = [times, {name: 1.01 * value for name, value in times.items()}, times]
    return runs


def equal_threads(runs: list[Run]) -> list[Run]:
    """As with --threads 1: more ranks use more cores."""
    for run in runs:
        run.threads = 1
    return runs


def test_where_it_stops_paying_and_the_phase_that_grew(scaled: Scaled) -> None:
    runs = equal_threads(scaled({"ddp": FAST}))
    with_phases(runs, forward={1: 8.0, 2: 4.0, 4: 2.0}, wait={1: 0.0, 2: 0.2, 4: 1.1})
    assert scaling_sentences(runs) == [
        "ddp is 1.8x faster on 2 ranks and 1.9x on 4 than on 1: beyond 2 it stops paying, "
        "because waiting grew from 0.2 to 1.1 ms per step."
    ]
    assert sentences(runs)[1] == scaling_sentences(runs)[0]
    assert scaling_sentences(runs)[0] in conclusion(runs)
    for run in runs:
        run.others_cores = 4.0  # of eight: they may be the reason
    assert scaling_sentences(runs)[0].endswith("beyond 2 it stops paying.")
    assert scaling_sentences(runs)[0] in conclusion(runs)


def test_a_phase_that_more_ranks_do_not_shorten(scaled: Scaled) -> None:
    runs = equal_threads(scaled({"hogwild": FAST}))
    with_phases(runs, forward={1: 8.0, 2: 4.0, 4: 3.9}, wait={1: 0.0, 2: 0.2, 4: 0.2})
    assert scaling_sentences(runs)[0].endswith(
        "beyond 2 it stops paying, because forward still takes 3.9 ms per step on 4 (4.0 on 2)."
    )


def test_a_phase_that_did_not_grow_in_every_round_is_not_named(scaled: Scaled) -> None:
    runs = with_phases(equal_threads(scaled({"ddp": FAST})), forward={1: 8.0, 2: 4.0, 4: 2.0}, wait={2: 0.2, 4: 1.1})
    runs[-1].round_phases_ms = [{"wait": 1.1}, {"wait": 0.05}, {"wait": 1.1}]
    assert scaling_sentences(runs)[0].endswith("beyond 2 it stops paying.")


def test_more_ranks_than_cores_come_first(scaled: Scaled) -> None:
    runs = with_phases(scaled({"ddp": FAST}, cores=2), forward={1: 8.0, 2: 4.0, 4: 4.0}, wait={1: 0.0, 2: 0.2, 4: 1.1})
    assert scaling_sentences(runs)[0].endswith(
        "beyond 2 it stops paying, because 4 ranks share 2 cores, and waiting grew from 0.2 to 1.1 ms per step."
    )


def test_cores_that_one_rank_used_already(scaled: Scaled) -> None:
    runs = with_phases(scaled({"ddp": {1: 1000.0, 2: 990.0}}, cores=2), forward={1: 8.0, 2: 8.0})
    assert scaling_sentences(runs) == [
        "ddp gains nothing beyond 1 rank (0.99x on 2), because 1 rank with 2 threads already uses the 2 cores."
    ]


def test_gpus_that_ranks_share(scaled: Scaled) -> None:
    runs = equal_threads(scaled({"ddp": FAST}, device="cuda"))
    for run in runs:
        run.devices = ["cuda:0", "cuda:1"][: run.ranks]
    assert "because 4 ranks share 2 GPUs" in scaling_sentences(runs)[0]


def test_it_pays_as_far_as_it_was_tried(scaled: Scaled) -> None:
    assert scaling_sentences(scaled({"hogwild": {1: 1000.0, 2: 1900.0, 4: 3500.0}})) == [
        "hogwild is 1.9x faster on 2 ranks and 3.5x on 4 than on 1: it pays up to 4 ranks, the most tried."
    ]


def test_noise_is_not_called_an_end(scaled: Scaled) -> None:
    runs = scaled({"ddp": FAST})
    runs[-1].rounds = [1500.0, 1900.0, 2900.0]
    assert scaling_sentences(runs) == [
        "ddp is 1.8x faster on 2 ranks than on 1; whether it gains beyond 2 cannot be told from three rounds: "
        "use --rounds 9."
    ]
    runs[-2].rounds = runs[-1].rounds = [700.0, 1800.0, 2900.0]
    assert scaling_sentences(runs)[0].startswith("Whether ddp gains beyond 1 rank cannot be told from three rounds")
    for run, speed in zip(runs, (400.0, 800.0, 1000.0, 1800.0, 1900.0), strict=True):
        run.rounds, run.samples_per_second = None, speed  # --rounds 0
    assert scaling_sentences(runs)[0].endswith(
        "whether it gains beyond 2 cannot be told from one fit each: use --rounds 9."
    )


def test_without_a_row_of_one_rank_one_process_is_the_measure(scaled: Scaled) -> None:
    slow = scaled({"pipeline": {2: 300.0, 4: 400.0}})
    assert scaling_sentences(slow) == [
        "pipeline is 0.07x as fast on 2 ranks and 0.09x on 4 as one process with eight threads: no number of ranks pays."
    ]
    fast = scaled({"pipeline": {2: 6000.0, 4: 12000.0}})
    assert scaling_sentences(fast)[0].startswith("pipeline is 1.4x faster on 2 ranks and 2.8x on 4 than one process")


def test_a_growing_batch_is_compared_by_samples(scaled: Scaled) -> None:
    """Other batch sizes were never compared: with --scale-batch no row would have had a speed-up."""
    runs = scaled({"ddp": FAST}, weak=True)
    assert scaling_sentences(runs)[0].startswith(
        "With a batch that grows with the ranks, ddp is 1.8x faster on 2 ranks"
    )
    by_label = {row["label"]: row for row in comparison_rows(runs)}
    assert by_label["ddp (4 ranks)"]["speedup"] == pytest.approx(1900 / 1000 / 2**0.7)
    assert "differ in batch size" not in sentences(runs)[0]
    plain = scaled({"ddp": FAST}, comparison="other")
    assert "batch size (128 per rank and 128)" in sentences([*runs, *plain])[0]


def test_efficiency_compares_like_with_like(scaled: Scaled) -> None:
    """A rank of two has half the threads of a rank of one: each is held against one process with as many."""
    rows = {row["label"]: row for row in comparison_rows(scaled({"ddp": FAST}, cores=4))}
    assert rows["ddp (4 ranks)"]["efficiency"] == pytest.approx(1900 / 1000 / 4)
    assert rows["ddp (1 rank)"]["efficiency"] == pytest.approx(1000 / 4**0.7 / 1000)
    assert rows["ddp (2 ranks)"]["efficiency"] is None  # nobody measured one process with two threads


def test_the_ideal_knows_how_many_cores_there_are(scaled: Scaled) -> None:
    one = scalings(equal_threads(scaled({"ddp": {1: 1.0, 2: 2.0, 16: 9.0}}, cores=8)))[0]
    assert [one.ideal(run) for run in one.runs] == [1.0, 2.0, 8.0]
    shared = scalings(scaled({"ddp": {1: 1.0, 2: 2.0, 8: 9.0}}, cores=8))[0]
    assert [shared.ideal(run) for run in shared.runs] == [1.0, None, pytest.approx(8 / 8**0.7)]


def test_rows_of_one_strategy_belong_together_whatever_their_options_became(make: Make, scaled: Scaled) -> None:
    """hybrid works out its replicas from the ranks, so its rows have different labels."""
    shared = {"comparison": "a", "asked": "hybrid"}
    rows = [make("hybrid", 100.0 * n, ranks=n, options={"replicas": n // 2, "stages": 2}, **shared) for n in (2, 4)]
    assert [(one.name, len(one.runs)) for one in scalings(rows)] == [("hybrid", 2)]


def test_stored_runs_of_other_comparisons_are_other_lines(scaled: Scaled, make: Make) -> None:
    old = [make("ddp", 100.0 * ranks, ranks=ranks) for ranks in (1, 2)]  # as an older version wrote them
    found = scalings([*old, *scaled({"ddp": FAST}), make("ddp", 5.0, task="mnist")])
    assert [(one.name, [run.ranks for run in one.runs]) for one in found] == [("ddp", [1, 2]), ("ddp #2", [1, 2, 4])]


def chart_of(text: str, key: str) -> dict[str, Any] | None:
    data = re.search(r'id="chart-data">(.*?)</script>', text, re.DOTALL)
    assert data
    return next((chart for chart in json.loads(data[1]) if chart["id"] == key), None)


def test_the_chart_has_a_line_per_strategy_its_spread_and_the_ideal(scaled: Scaled) -> None:
    runs = scaled({"ddp": {1: 1000.0, 2: 1800.0, 16: 1900.0}, "hogwild": {1: 1000.0, 2: 2000.0}})
    chart = chart_of(page(runs), "scaling")
    assert chart
    _, ddp, hogwild = chart["data"]
    assert [trace["name"] for trace in chart["data"]] == ["ideal", "ddp", "hogwild"]
    assert (ddp["x"], ddp["y"]) == ([1, 2, 16], [1.0, 1.8, 1.9])
    assert len(ddp["error_y"]["array"]) == len(ddp["error_y"]["arrayminus"]) == 3
    assert ddp["line"] != hogwild["line"]
    assert ddp["marker"]["symbol"] != hogwild["marker"]["symbol"]
    assert "Strong scaling" in chart["layout"]["title"]["text"]
    assert chart["layout"]["annotations"][0]["text"] == "8 cores"
    assert chart_of(page(runs), "scaling-weak") is None


def test_a_weak_chart_says_so_and_one_number_of_ranks_has_none(scaled: Scaled, runs: list[Run]) -> None:
    text = page(scaled({"ddp": FAST}, weak=True))
    chart = chart_of(text, "scaling-weak")
    assert chart
    assert "Weak scaling" in chart["layout"]["title"]["text"]
    assert "The batch grows with the ranks" in text
    assert chart_of(page(runs), "scaling") is None


def test_refused_and_failed_rows_leave_the_others_their_line(scaled: Scaled, make: Make) -> None:
    runs = scaled({"ddp": FAST})
    runs.insert(3, make("ddp", status="failed", reason="planted", ranks=3, comparison="one", asked="ddp"))
    assert [run.ranks for run in scalings(runs)[0].runs] == [1, 2, 4]
    assert "ddp (3 ranks) failed: planted." in sentences(runs)


@pytest.mark.soak
@pytest.mark.browser
def test_six_strategies_with_four_numbers_of_ranks_on_a_phone(browser: Any, scaled: Scaled, tmp_path: Any) -> None:
    """A legend of 26 names left a plot less than no height, and the page stopped drawing."""
    names = ("ddp", "hogwild", "locked", "pipeline", "fsdp", "local_sgd")
    runs = scaled({name: {ranks: 900.0 * ranks**0.8 for ranks in (1, 2, 4, 8)} for name in names})
    browser.open(report(runs, tmp_path / "report.html"), 380)
    assert browser.problems() == []
    assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.ask("document.querySelector('#chart-scaling .main-svg').clientHeight") > 300
    assert browser.ask("document.querySelectorAll('#chart-scaling .legendtext').length") == 7
