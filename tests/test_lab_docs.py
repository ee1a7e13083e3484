"""docs/lab.md is filled from results by one command: parts of their own, pictures that are readable, the rest untouched."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.lab_result import made_up
from tests.pages.test_colours import contrast


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("lab_docs")


def fill(script: ModuleType, page: Path, *results: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> str:
    given = []
    for number, result in enumerate(results):
        folder = page.parent / f"run-{number}"
        folder.mkdir(exist_ok=True)
        (folder / "result.json").write_text(json.dumps(result))
        given.append(str(folder))
    monkeypatch.setattr(sys, "argv", ["lab_docs.py", *given, "--commit", "ab12cd3", "--page", str(page)])
    script.main()
    return page.read_text()


def test_a_result_is_written_between_the_markers_and_again_in_its_place(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "lab.md"
    markers = [*script.LIST, *script.RESULTS]
    page.write_text("\n".join(["by hand", "", *markers, "", "by hand too", ""]))
    quick = made_up(quick=True, note="less of it", holds=None, command="manyhands lab loader-workers --quick")
    other = made_up(experiment="own", title="My own", published=[], holds=False, curves=[])
    text = fill(script, page, other, quick, made_up(), monkeypatch=monkeypatch)
    assert text.startswith("by hand\n\n<!-- experiments")
    assert text.endswith(f"{script.RESULTS[1]}\n\nby hand too\n")
    assert "\n| `loader-workers` | " in text
    order = ["### Loader workers on MNIST\n", "### Loader workers on MNIST (quick)", "### My own"]
    assert sorted(order, key=text.index) == order
    for expected in (
        "| **0 workers** | 6.30 (6.10 to 6.60) | 71.30 (70.90 to 74.20) | 99.08 % (99.04 % to 99.10 %) |",
        "| published | 6.40 | 72.80 | 99.08 % |",
        "| **8 workers**: loader_workers: 8 processes need 8 cores (found 2) | - | - | - |",
        "> **✓** Published: Four loader workers",
        "Reduced (`--quick`): less of it.",
        "2 cores of A processor, torch 2.13.0, Python 3.11.2, manyhands 0.1.0 (ab12cd3), 2026-03-02.",
        "Measured: the median of 3 seeds.",
        "Again: `manyhands lab loader-workers --quick`.",
        "- ✓ [Loader workers on MNIST](#loader-workers-on-mnist)\n"
        "- ? [Loader workers on MNIST (quick)](#loader-workers-on-mnist-quick)\n- ✗ [My own](#my-own)\n",
    ):
        assert expected in text, expected
    assert all((tmp_path / name).is_file() for name in re.findall(r"\]\((images/[^)]+)\)", text))
    again = fill(script, page, made_up(title="Renamed", curves=[]), monkeypatch=monkeypatch)
    assert "### Renamed\n" in again
    assert "### Loader workers on MNIST\n" not in again
    assert again.split("<!-- lab: loader-workers-quick -->")[1] == text.split("<!-- lab: loader-workers-quick -->")[1]
    assert not (tmp_path / "images" / "lab-loader-workers-1.svg").exists()  # it is shown nowhere any more
    assert (tmp_path / "images" / "lab-loader-workers-quick-1.svg").exists()


def test_a_missing_result_or_marker_is_one_line(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "lab.md"
    page.write_text("by hand")
    with pytest.raises(SystemExit, match="the page has no markers"):
        fill(script, page, made_up(), monkeypatch=monkeypatch)
    monkeypatch.setattr(sys, "argv", ["lab_docs.py", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match=r"no result at .*nowhere: run `manyhands lab NAME` first"):
        script.main()


def test_pictures_are_whole_and_readable_on_light_and_dark_pages(script: ModuleType) -> None:
    drawing = import_module("svg_chart")
    for colour in (*drawing.COLOURS, drawing.GREY):
        assert contrast(colour, "#ffffff") >= 3
        assert contrast(colour, "#0d1117") >= 3
    points = [[1, 0.5, 0.4, 0.7], [2, 1.1, 1.1, 1.1], [16, 7.3, 6, 8]]
    lines = [drawing.Line("a <b>", points), drawing.Line("a <b> (published)", points[:1], published=True)]
    across, up = drawing.Axis("ranks", True, [1, 2, 16]), drawing.Axis("speed-up", True)
    svg = ElementTree.fromstring(drawing.chart("A & B", [drawing.Panel("speed", across, up, lines)]))
    texts = [one.text for one in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"speed", "ranks", "speed-up", "1", "2", "16", "a <b>", "a <b> (published)"} <= set(texts)
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for one in svg.iter("{http://www.w3.org/2000/svg}text"):
        if "x" in one.attrib:
            assert 0 <= float(one.attrib["x"]) <= width
            assert 0 < float(one.attrib["y"]) <= height


@pytest.mark.parametrize(
    ("values", "steep", "ticks"),
    [
        ([0.0, 71.0], False, [0, 20, 40, 60, 80]),
        ([90.1, 99.2], False, [90, 92, 94, 96, 98, 100]),
        ([5.0], False, [4.5, 5.0, 5.5]),
        ([3.0, 4000.0], True, [1, 10, 100, 1000, 10000]),
        ([-0.4, 0.3], False, [-0.4, -0.2, 0, 0.2, 0.4]),
    ],
)
def test_the_lines_of_the_grid_are_round_numbers(
    script: ModuleType, values: list[float], steep: bool, ticks: list[float]
) -> None:
    drawing = import_module("svg_chart")
    found = drawing.Span(drawing.Axis("", steep), values, 0, 100, whole=True).ticks
    assert found == pytest.approx(ticks)


def test_the_chart_of_the_transport_is_drawn_from_its_record(script: ModuleType) -> None:
    times = {"manyhands_shm": [1e-5, 2e-5], "gloo": [1e-3, 2e-3]}
    record = {"trials": {f"{kind} {1 << power}": times for kind in ("all_reduce", "message") for power in (10, 20)}}
    text = import_module("transport_chart").drawing(record)
    assert text.count('class="line"') == 4 * 2 + 4  # two panels, and the legend
    assert "1 KB" in text
    assert "GB/s" in text
