"""The page as text: what is in it, what is not, and that no record can break it."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import BadInput
from manyhands.pages import report
from manyhands.pages.page import page
from manyhands.record.run import Run
from tests.conftest import Command

Make = Callable[..., Run]


def data_of(text: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def words_of(text: str) -> str:
    """What a reader reads: no scripts, styles or tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", body.replace("<wbr>", "")))


def test_a_lone_half_chart_gets_the_whole_line(make: Make) -> None:
    run = make("ddp", 100, per_rank=[{"rank": 0, "peak_memory_bytes": 2**28}])
    assert 'class="chart half"' not in page([run])
    run.usage = {"cores": [{"core": 0, "mean_percent": 50.0}]}
    assert page([run]).count('class="chart half"') == 2


def test_sentences_rows_commands_and_machine(runs: list[Run]) -> None:
    text = words_of(page(runs))
    for expected in (
        "hogwild is 1.1x faster than one process with two threads and 1.7x faster than one process with one thread",
        "failed: rank 1 of 2 failed in step 17, backward: RuntimeError: planted",
        "refused: model_parallel cannot cut this model",
        "rank 1 slow in forward, 4.2 ms behind",
        "rank 1 is slow in `forward`",
        "the last stage holds 61 % of the work",
        "manyhands compare glyphs single ddp hogwild locked pipeline parameter_server --ranks 2",
        "A processor",
        "2.13.0",
        "updates race",
    ):
        assert expected in text, expected


def test_short_headings_are_explained_under_the_table(runs: list[Run]) -> None:
    assert "Lost: share of each step lost to load, communication and wait." in words_of(page(runs))


def test_only_runs_that_are_in_a_chart_can_be_hidden(runs: list[Run], make: Make) -> None:
    boxes = re.findall(r'data-run="(\d)" data-name="([^"]+)"', page(runs))
    assert [number for number, _ in boxes] == list("012345")  # not those that failed and were refused
    assert boxes[3][1] == "hogwild"
    assert 'class="chooser"' not in page([make("ddp", 100)])


def test_a_target_adds_its_column(runs: list[Run]) -> None:
    assert "to target" not in words_of(page(runs))
    assert "The target is a test accuracy of 90 %" in words_of(page(runs, target=0.9))


def test_charts_without_data_say_why(make: Make) -> None:
    text = page([make("ddp", status="refused", reason="no")])
    assert data_of(text) == []
    for why in (
        "No run has a speed.",
        "No run recorded the loss of its steps.",
        "No test accuracy was recorded.",
        "No run recorded the phases of its steps.",
        "No run kept a timeline of its steps.",
        "No run recorded the memory of its ranks.",
        "No run recorded the use of cores and GPUs.",
        "No run recorded the accuracy of each class.",
        "No run was asynchronous",
        "no command was recorded",
    ):
        assert why in words_of(text)


def test_strings_of_a_record_cannot_become_code(runs: list[Run]) -> None:
    evil = '</script><script>window.hurt = 1</script><img src=x onerror="window.hurt = 1">'
    run = runs[3]
    run.strategy = run.task = run.reason = run.command = run.started = run.device = evil
    run.status, run.options, run.notes, run.environment = "stopped", {evil: evil}, [evil], {evil: evil, "cpu": evil}
    run.slow_rank = {"rank": evil, "phase": evil, "behind_ms": evil}
    run.test = {"accuracy": 0.5, "per_class": {evil: 0.5}}
    run.timeline.append({"rank": 0, "step": 5, "phase": evil, "start_ms": 0, "end_ms": 1})
    run.per_rank[0]["rank"], run.faults, run.phases_source = evil, [{evil: evil}], evil
    text = page(runs, title=evil)
    assert "<img" not in text
    assert len(re.findall(r"<script[ >]", text)) == 4  # the data, plotly.js, charts.js and page.js: no fifth
    assert text.count("window.hurt") > 10  # it is all shown, as text
    shown = json.dumps(data_of(text))
    assert "&lt;img" in shown
    assert "<img" not in shown


def test_nothing_is_fetched(runs: list[Run]) -> None:
    text = page(runs)
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"https?://", outside)
    assert "default-src 'none'" in outside
    assert len(re.findall(r"'sha256-[A-Za-z0-9+/=]{44}'", outside)) == 3
    assert text.count("plotly.js (cartesian") == 1


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(field.name, marks=pytest.mark.soak if number % 3 else ())
        for number, field in enumerate(dataclasses.fields(Run))
        if field.name not in ("task", "strategy")
    ],
)
def test_a_record_with_a_gap_still_renders(runs: list[Run], field: str) -> None:
    for run in runs[2:4]:
        run.timeline = run.timeline[:3]  # most of the time goes into drawing it
        setattr(run, field, None)
    assert "</html>" in page(runs[2:4])


OLDER = {  # a record as an earlier version might have left it: less in it, other forms, names nobody knows any more
    "schema": 0, "task": "glyphs", "strategy": "ddp", "status": "done", "ranks": 2, "samples_per_second": 4000.0,
    "losses": None, "epochs": {"1": 0.9}, "per_rank": None, "options": None, "phases_ms": {"compute": 8.0, "sync": 2.0},
    "seconds_per_epoch": [1.0, 2.0], "test": {"accuracy": 0.9},
}  # fmt: skip


def test_records_of_an_older_schema_render_beside_newer_ones_and_say_so(runs: list[Run], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text(json.dumps(OLDER))
    runs[0].save(tmp_path / "new")
    text = report([tmp_path / "old", tmp_path / "new"], tmp_path / "page.html").read_text()
    words = " ".join(words_of(text).split())
    assert "schema 0, written by an older manyhands" in words
    assert "4,000" in words
    assert "90.00 %" in words
    charts = {chart["id"]: chart for chart in data_of(text)}
    assert {"speed", "phases"} <= set(charts)
    other = next(trace for trace in charts["phases"]["data"] if trace["name"] == "other")
    assert other["x"][0] == 10.0  # phases of other names


def test_the_least_a_record_can_hold(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": 0, "task": "glyphs", "strategy": "ddp"}))
    assert "schema 0" in words_of(report([tmp_path], tmp_path / "page.html").read_text())


def test_a_record_of_a_later_version_is_refused_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": 99, "task": "glyphs", "strategy": "ddp"}))
    with pytest.raises(BadInput, match=r"newer manyhands \(record schema 99"):
        report([tmp_path], tmp_path / "page.html")


def test_figures_that_are_not_finite_do_not_reach_the_page(runs: list[Run]) -> None:
    runs[2].losses[5], runs[2].losses[6] = float("nan"), None
    runs[2].rounds = [float("inf"), 7000.0]
    runs[2].samples_per_second = float("nan")
    assert data_of(page(runs))


def test_runs_are_read_from_folders_and_folders_of_folders(runs: list[Run], tmp_path: Path) -> None:
    for number, run in enumerate(runs[:3]):
        run.save(tmp_path / "runs" / str(number))
    alone = report(tmp_path / "runs" / "2", tmp_path / "alone.html").read_text()
    assert "timeline" in alone
    everything = words_of(report([tmp_path / "runs"], tmp_path / "all.html").read_text())
    for name in ("single (1 thread)", "single (2 threads)", "ddp"):
        assert name in everything


def test_where_the_page_goes(runs: list[Run], tmp_path: Path) -> None:
    assert report(runs, tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert report(runs, tmp_path) == tmp_path / "report.html"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "page.html", "report.html"]


def test_nothing_to_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to report: no runs were given"):
        report([], tmp_path / "page.html")
    with pytest.raises(BadInput, match=r"no run at .*nowhere: run\.json not found"):
        report([tmp_path / "nowhere"], tmp_path / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"the report cannot be written to .*; choose another path"):
        report([Run("glyphs", "ddp")], tmp_path / "file" / "page.html")


def test_jinja2_is_loaded_only_to_make_a_page() -> None:
    code = "import sys, manyhands.pages, manyhands.pages.words; print({'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_page_that_a_wildcard_caught_is_not_a_run(runs: list[Run], tmp_path: Path) -> None:
    """`manyhands report runs/glyphs/*` answered "report.html cannot be read: Expecting value: line 1 column 1 (char 0)"."""
    page = report(runs, tmp_path / "report.html")
    with pytest.raises(
        BadInput, match=r"report\.html is not a run; give the folder of a run, or a folder that contains runs"
    ):
        report([page], tmp_path / "other.html")


def test_one_broken_record_below_a_folder_is_left_out_and_said(
    runs: list[Run], tmp_path: Path, command: Command
) -> None:
    """One bad file among a hundred runs, and `manyhands report FOLDER` made no page."""
    runs[0].save(tmp_path / "kept/a")
    (tmp_path / "kept/<b>").mkdir()
    (tmp_path / "kept/<b>/run.json").write_text("{")
    code, out, err = command("report", str(tmp_path / "kept"), "-o", "page.html")
    assert (code, Path(out.strip()).name) == (0, "page.html")
    assert err.startswith("manyhands: 1 record left out: ")
    assert "<b>/run.json cannot be read" in err
    page = Path("page.html").read_text()
    assert "Left out: " in page
    assert "<b>/run.json" not in page  # it is escaped
    with pytest.raises(BadInput, match=r"<b>/run\.json cannot be read"):
        report([tmp_path / "kept/a", tmp_path / "kept/<b>"], tmp_path / "other.html")
    (tmp_path / "kept/a/run.json").write_text("[]")
    code, out, err = command("report", str(tmp_path / "kept"), "-o", "page.html")
    assert (code, out) == (2, "")
    assert "is not the record of a run" in err or "cannot be read" in err
