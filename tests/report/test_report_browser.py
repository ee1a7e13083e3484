"""The page in a real browser: charts drawn, no complaint, sortable, readable on a phone, in the dark and on paper."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from manyhands.measure.run import Run
from manyhands.report import report

pytestmark = pytest.mark.browser
DRAWN = "[...document.querySelectorAll('.plot')].map(p => [p.id, !!p.querySelector('.main-svg'), p.clientHeight])"
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
PAPER = "getComputedStyle(document.querySelector('#chart-phases .main-svg')).backgroundColor"
LABELS = "[...document.querySelectorAll('#summary-table tbody th')].map(cell => cell.firstChild.data)"


def heading(name: str) -> str:
    return f"[...document.querySelectorAll('#summary-table thead button')].find(b => b.textContent === '{name}')"


@pytest.fixture
def made(runs: list[Run], tmp_path: Path) -> Path:
    return report(runs, tmp_path / "report.html")


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (360, False), (768, False)])
def test_every_chart_is_drawn_and_nothing_complains(browser: Any, made: Path, width: int, dark: bool) -> None:
    browser.open(made, width, dark)
    drawn = browser.ask(DRAWN)
    assert len(drawn) == 15
    assert all(there and 80 < height < 900 for _, there, height in drawn), drawn
    assert browser.problems() == []
    assert browser.ask(FITS), "the page scrolls sideways"
    light = "rgb(255, 255, 255)"
    assert (browser.ask(BACKGROUND) != light) == dark
    assert browser.ask(PAPER) == browser.ask(BACKGROUND)
    assert browser.ask("document.documentElement.outerHTML.includes('fill: var(')") is False


def test_opened_figures_do_not_widen_a_phone(browser: Any, made: Path) -> None:
    browser.open(made, 360)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.ask(FITS)
    assert browser.ask("[...document.querySelectorAll('.why')].every(cell => cell.offsetHeight > 0)")


def test_the_table_sorts_by_click_and_by_keyboard(browser: Any, made: Path) -> None:
    browser.open(made)
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


def test_tab_reaches_the_contents_the_table_and_the_buttons_of_charts(browser: Any, made: Path) -> None:
    browser.open(made)
    seen = set()
    for _ in range(60):
        browser.press("Tab", 9)
        seen.add(browser.ask("(e => e.className || e.tagName)(document.activeElement)"))
    assert {"skip", "A", "BUTTON", "modebar-btn", "SUMMARY"} <= {name.split()[0] for name in seen if name}


def test_a_chart_can_be_saved_as_a_picture(browser: Any, made: Path, tmp_path: Path) -> None:
    browser.open(made)
    button = "document.querySelector('#chart-phases .modebar-btn[data-attr], #chart-phases .modebar-btn')"
    assert "png" in browser.ask(f"{button}.getAttribute('aria-label')").lower()
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.ask(f"{button}.click()")
    picture = tmp_path / "manyhands-phases.png"
    browser.wait("true")
    for _ in range(200):
        if picture.exists() and picture.stat().st_size:
            break
        browser.ask("new Promise(done => setTimeout(done, 50))")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert browser.problems() == []


def test_a_change_of_theme_redraws_the_charts(browser: Any, made: Path) -> None:
    browser.open(made)
    before = browser.ask(PAPER)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.wait(f"{PAPER} !== '{before}'")
    assert browser.ask(PAPER) == browser.ask(BACKGROUND)


def test_paper_gets_light_charts_of_its_width(browser: Any, made: Path) -> None:
    browser.open(made, dark=True)
    browser.ask("window.dispatchEvent(new Event('beforeprint'))")
    browser.wait("document.querySelector('#chart-phases .main-svg').clientWidth === 680")
    assert browser.ask(PAPER) == "rgb(255, 255, 255)"
    browser.ask("window.dispatchEvent(new Event('afterprint'))")
    browser.wait("document.querySelector('#chart-phases .main-svg').clientWidth > 900")
    assert browser.ask(PAPER) != "rgb(255, 255, 255)"
    printed = base64.b64decode(browser.call("Page.printToPDF")["data"])
    assert printed[:5] == b"%PDF-"


def test_hostile_strings_stay_text(browser: Any, runs: list[Run], tmp_path: Path) -> None:
    evil = '</script><script>window.hurt = 1</script><img src=x onerror="window.hurt = 1"><a href="javascript:hurt=1">x</a>'
    for run in runs:
        run.task = run.command = evil
    runs[2].strategy = runs[3].strategy = evil
    runs[2].test = {"accuracy": 0.5, "per_class": {evil: 0.5}}
    browser.open(report(runs, tmp_path / "report.html", title=evil))
    assert browser.ask("window.hurt === undefined")
    assert browser.ask("document.querySelectorAll('main img, header img, .plot a[href]').length") == 0
    assert browser.problems() == []


def test_one_run_with_little_in_it(browser: Any, tmp_path: Path) -> None:
    browser.open(report(Run("glyphs", "ddp", samples_per_second=100.0), tmp_path / "report.html"), 360)
    assert len(browser.ask(DRAWN)) == 1
    assert browser.problems() == []
    assert browser.ask(FITS)
