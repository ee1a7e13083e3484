"""The page in a real browser: charts drawn, no complaint, sortable, readable on a phone, in the dark and on paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.pages import report
from manyhands.record.run import Run

pytestmark = pytest.mark.browser
DRAWN = (
    "[...document.querySelectorAll('.plot')]"
    ".map(plot => [plot.id, !!plot.querySelector('.main-svg'), plot.clientHeight, plot.scrollWidth])"
)
HEIGHTS = "[...document.querySelectorAll('.plot')].map(plot => [plot.id, plot.clientHeight])"
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
PAPER = "getComputedStyle(document.querySelector('#chart-phases .main-svg')).backgroundColor"
WHITE = "rgb(255, 255, 255)"
LABELS = "[...document.querySelectorAll('#summary-table tbody th')].map(cell => cell.dataset.sort)"


BOX = "[...document.querySelectorAll('.chooser input')].find(box => box.dataset.name === '{}')"
STATUS = "document.querySelector('.hidden-runs').textContent"
# What plotly.js finds wrong with each chart as it is drawn: unknown names, and values that are none.
OBJECTIONS = """[...document.querySelectorAll('.plot')].flatMap(plot => (Plotly.validate(plot.data, plot.layout) || [])
  .filter(problem => ['schema', 'value', 'object', 'array'].includes(problem.code))
  .map(problem => plot.id + ': ' + problem.msg))"""
# The names of runs in every chart: of rows beside and above them, and of curves that are drawn.
SHOWN = """Object.fromEntries([...document.querySelectorAll('.plot:not([hidden])')].map(plot => [plot.id.slice(6),
  plot.layout.meta?.rows ? plot.layout.meta.rows.map(row => row.run)
    : plot.data.filter(trace => trace.visible !== 'legendonly').flatMap(trace => trace.meta)]))"""


def heading(name: str) -> str:
    return f"[...document.querySelectorAll('#summary-table thead button')].find(b => b.textContent === '{name}')"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, comparison: Callable[[], list[Run]]) -> Path:
    return report(comparison(), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def desktop(browser: Any, made: Path) -> Any:
    """The browser with the page open; loaded anew only where a test before left it otherwise."""
    if browser.shown != (made, 1200, False):
        browser.open(made)
    return browser


def check_charts(browser: Any, width: int) -> None:
    drawn = browser.ask(DRAWN)
    assert len(drawn) == 12
    assert all(there and 80 < height < 900 and across <= width for _, there, height, across in drawn), drawn
    assert browser.ask("document.querySelector('main').innerHTML.includes('var(--series')") is False
    assert browser.problems() == []
    assert browser.ask(FITS), "the page scrolls sideways"
    assert browser.ask(PAPER) == browser.ask(BACKGROUND)


def test_every_chart_is_drawn_and_nothing_complains(desktop: Any) -> None:
    check_charts(desktop, 1200)
    assert desktop.ask(BACKGROUND) == WHITE


def test_plotly_knows_every_name_and_value_in_the_charts(desktop: Any) -> None:
    """Figures are plain dictionaries, so nothing else would notice a misspelt one."""
    assert desktop.ask(OBJECTIONS) == []


def test_a_hidden_run_is_gone_from_every_chart_and_comes_back(browser: Any, desktop: Any) -> None:
    before, heights = browser.ask(SHOWN), dict(browser.ask(HEIGHTS))
    assert len(before) == 12
    assert all(4 in runs for name, runs in before.items() if name not in ("speed-accuracy", "speed-memory"))
    browser.ask("document.querySelector('.chooser summary').focus()")
    browser.press("Enter", 13)
    browser.press("Tab", 9)
    for _ in range(4):
        browser.press("Tab", 9)
    assert browser.ask("document.activeElement.dataset.name") == "locked"
    browser.press(" ", 32)
    browser.wait(f"!({SHOWN})['loss-time'].includes(4) && !({SHOWN})['staleness'].includes(4)")
    after = browser.ask(SHOWN)
    assert {name: [run for run in runs if run != 4] for name, runs in before.items()} == after
    assert browser.ask(STATUS) == "Hidden in the charts: locked. Shown: 5 of 6 runs."
    assert browser.ask("document.querySelector('.hidden-runs').getAttribute('role')") == "status"
    assert browser.ask("document.querySelector('.chooser summary').textContent") == "Runs shown: 5 of 6"
    off = "[...document.querySelectorAll('#summary-table tr.off th')].map(cell => cell.dataset.sort)"
    assert browser.ask(off) == ["locked"]
    assert browser.ask("[...document.querySelectorAll('.chart tr[data-run=\"4\"]')].every(row => row.hidden)")
    rows = browser.ask("document.querySelector('#chart-phases').layout.yaxis")
    assert rows["ticktext"][4].startswith("pipeline")  # moved up to where the hidden one was
    assert rows["tickvals"] == [0, 1, 2, 3, 4]
    assert dict(browser.ask(HEIGHTS))["chart-timeline"] < heights["chart-timeline"]
    browser.press("Escape", 27)
    assert browser.ask("!document.querySelector('.chooser').open && document.activeElement.tagName === 'SUMMARY'")
    browser.ask("document.querySelector('.chooser button').click()")
    browser.wait(f"JSON.stringify({SHOWN}) === {json.dumps(json.dumps(before, separators=(',', ':')))}")
    assert browser.ask(STATUS) == "All runs are shown in the charts."
    assert dict(browser.ask(HEIGHTS)) == heights
    assert browser.problems() == []


def test_the_legend_hides_a_run_everywhere_and_all_others(browser: Any, desktop: Any) -> None:
    browser.shown = None
    click = "(plot => plot.emit('plotly_legend{}', {{data: plot.data, curveNumber: {}}}))(document.querySelector('#chart-{}'))"
    browser.ask(click.format("click", 0, "speed-accuracy"))  # the frontier, which is no run
    assert browser.ask("[...document.querySelectorAll('.chooser input')].every(box => box.checked)")
    browser.ask(click.format("click", 3, "loss-time"))
    browser.wait(f"!({SHOWN})['phases'].includes(3)")
    assert not browser.ask(f"{BOX.format('hogwild')}.checked")
    browser.ask(click.format("click", 3, "loss-time"))
    browser.wait(f"({SHOWN})['phases'].includes(3)")
    for kind in ("click", "click", "doubleclick"):  # as plotly reports a double click
        browser.ask(click.format(kind, 3, "loss-time"))
    browser.wait(f"({SHOWN})['phases'].length === 1 && ({SHOWN})['usage'].length === 1")
    browser.ask(f"{BOX.format('hogwild')}.click()")
    browser.wait("[...document.querySelectorAll('.plot')].every(plot => plot.hidden)")
    assert browser.ask("[...document.querySelectorAll('.all-hidden')].every(note => note.offsetHeight > 0)")
    assert browser.problems() == []


def test_the_table_sorts_by_click_and_by_keyboard(browser: Any, desktop: Any) -> None:
    given = browser.ask(LABELS)
    assert given[0] == "single (1 thread)"
    sort = f"{heading('samples/s')}.parentElement.getAttribute('aria-sort')"
    assert browser.ask(sort) == "none"
    browser.ask(f"{heading('samples/s')}.click()")
    assert browser.ask(sort) == "descending"
    fast = ["hogwild", "ddp", "single (2 threads)", "locked", "single (1 thread)", "pipeline:chunks=4,schedule=1f1b"]
    assert browser.ask(LABELS) == [*fast, "parameter_server", "model_parallel"]
    browser.ask(f"{heading('samples/s')}.focus()")
    browser.press("Enter", 13)
    assert browser.ask(sort) == "ascending"
    assert browser.ask(LABELS) == [*reversed(fast), "parameter_server", "model_parallel"]  # no figure: still last
    browser.ask(f"{heading('strategy')}.click()")
    assert browser.ask(sort) == "none"
    assert browser.ask(LABELS) == sorted(given)


def test_tab_reaches_the_contents_the_table_and_the_buttons_of_charts(browser: Any, desktop: Any) -> None:
    browser.ask("document.querySelector('.skip').focus()")
    seen = set()
    for _ in range(60):
        browser.press("Tab", 9)
        seen.add(browser.ask("(e => e.className || e.tagName)(document.activeElement)"))
    assert {"A", "BUTTON", "modebar-btn", "SUMMARY"} <= {name.split()[0] for name in seen if name}


def test_a_chart_can_be_saved_as_a_picture(browser: Any, desktop: Any, tmp_path: Path) -> None:
    button = "document.querySelector('#chart-phases .modebar-btn[data-attr], #chart-phases .modebar-btn')"
    assert "png" in browser.ask(f"{button}.getAttribute('aria-label')").lower()
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.ask(f"{button}.click()")
    picture = tmp_path / "manyhands-phases.png"
    for _ in range(200):
        if picture.exists() and picture.stat().st_size:
            break
        browser.ask("new Promise(done => setTimeout(done, 50))")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert browser.problems() == []


@pytest.mark.soak
def test_paper_gets_light_charts_of_its_width(browser: Any, desktop: Any) -> None:
    browser.shown = None
    browser.theme(dark=True)
    browser.wait(f"{PAPER} !== '{WHITE}'")
    browser.ask("window.dispatchEvent(new Event('beforeprint'))")
    browser.wait("document.querySelector('#chart-phases .main-svg').clientWidth === 680")
    assert browser.ask(PAPER) == WHITE
    browser.ask("window.dispatchEvent(new Event('afterprint'))")
    browser.wait("document.querySelector('#chart-phases .main-svg').clientWidth > 900")
    assert browser.ask(PAPER) != WHITE


def test_a_phone_in_the_dark(browser: Any, made: Path) -> None:
    browser.open(made, 360, dark=True)
    check_charts(browser, 360)
    assert browser.ask(BACKGROUND) != WHITE
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.ask(FITS), "opened figures widen the page"
    assert browser.ask("[...document.querySelectorAll('.why')].every(cell => cell.offsetHeight > 0)")
    browser.shown = None
    browser.resize(768)  # turned on its side
    browser.wait("[...document.querySelectorAll('.main-svg')].every(chart => chart.clientWidth > 700)")
    check_charts(browser, 768)
    browser.theme(dark=False)
    browser.wait(f"{PAPER} === '{WHITE}'")


def test_hostile_strings_stay_text(browser: Any, runs: list[Run], tmp_path: Path) -> None:
    evil = '</script><script>window.hurt = 1</script><img src=x onerror="window.hurt = 1"><a href="javascript:0">x</a>'
    for run in runs:
        run.task = run.command = evil
    runs[2].strategy = runs[3].strategy = evil
    runs[2].test = {"accuracy": 0.5, "per_class": {evil: 0.5}}
    browser.open(report(runs, tmp_path / "report.html", title=evil))
    assert browser.ask("window.hurt === undefined")
    assert browser.ask("document.querySelectorAll('script').length") == 4
    assert browser.ask("document.querySelectorAll('main img, header img, .plot a[href]').length") == 0
    assert browser.problems() == []


@pytest.mark.soak
def test_one_run_with_little_in_it(browser: Any, tmp_path: Path) -> None:
    browser.open(report(Run("glyphs", "ddp", samples_per_second=100.0), tmp_path / "report.html"), 360)
    assert len(browser.ask(DRAWN)) == 1
    assert browser.problems() == []
    assert browser.ask(FITS)
