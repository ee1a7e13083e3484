"""The page in a real browser: charts drawn, no complaint, sortable, readable on a phone, in the dark and on paper."""

from __future__ import annotations

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
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
PAPER = "getComputedStyle(document.querySelector('#chart-phases .main-svg')).backgroundColor"
WHITE = "rgb(255, 255, 255)"
LABELS = "[...document.querySelectorAll('#summary-table tbody th')].map(cell => cell.firstChild.data)"


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
    assert len(drawn) == 15
    assert all(there and 80 < height < 900 and across <= width for _, there, height, across in drawn), drawn
    assert browser.ask("document.querySelector('main').innerHTML.includes('var(--series')") is False
    assert browser.problems() == []
    assert browser.ask(FITS), "the page scrolls sideways"
    assert browser.ask(PAPER) == browser.ask(BACKGROUND)


def test_every_chart_is_drawn_and_nothing_complains(desktop: Any) -> None:
    check_charts(desktop, 1200)
    assert desktop.ask(BACKGROUND) == WHITE


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
    assert browser.ask("document.querySelectorAll('script').length") == 3
    assert browser.ask("document.querySelectorAll('main img, header img, .plot a[href]').length") == 0
    assert browser.problems() == []


@pytest.mark.soak
def test_one_run_with_little_in_it(browser: Any, tmp_path: Path) -> None:
    browser.open(report(Run("glyphs", "ddp", samples_per_second=100.0), tmp_path / "report.html"), 360)
    assert len(browser.ask(DRAWN)) == 1
    assert browser.problems() == []
    assert browser.ask(FITS)
