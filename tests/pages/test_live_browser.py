"""The live page in a real browser: found, filtered, followed while a run goes on, compared; nothing is loaded again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.pages.live import listing
from manyhands.record.run import Run
from manyhands.record.run_folder import held
from tests.pages.live_runs import tell, train
from tests.pages.test_live_server import Site, serving

pytestmark = pytest.mark.browser
NAMES = "[...document.querySelectorAll('#runs-table tbody th .row-where')].map(place => place.textContent)"
CARD = "(document.querySelector('.card p:not(.where)') || {}).textContent"
NOW = "(document.querySelector('.now p') || {}).textContent"
DRAWN = "[...document.querySelectorAll('.plot')].filter(plot => plot.querySelector('.main-svg')).map(plot => plot.id)"
CURVE = "document.querySelector('#chart-loss-steps').data[0].x.at(-1)"
RUNNING = "['#runs summary span.running', '.summary tr.running small']"
COLOURS = f"{RUNNING}.map(at => getComputedStyle(document.querySelector(at)).color)"
FITS = "document.documentElement.scrollWidth <= window.innerWidth"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, comparison: Callable[[], list[Run]]) -> Path:
    folder = tmp_path_factory.mktemp("served")
    for number, run in enumerate(comparison()):
        run.started = f"2026-03-0{number + 1}T10:11:12+00:00"
        run.save(folder / f"{number}-{run.strategy}")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch, serving(folder) as found:
        patch.setattr(listing, "LOOK_SECONDS", 0.1)
        yield found


def visit(browser: Any, url: str, width: int = 1200, dark: bool = False) -> None:
    browser.shown = None
    browser.call("Page.navigate", url="about:blank")
    browser.events.clear()
    browser.resize(width)
    browser.theme(dark)
    browser.call("Page.navigate", url=url)
    ready(browser)


def ready(browser: Any) -> None:
    browser.wait("document.readyState === 'complete' && document.documentElement.dataset.ready === 'yes'")


def arrive(browser: Any, end: str = "/runs") -> None:
    """Wait for the page that was clicked on; while it is on its way there is nothing to ask."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(AssertionError):
            if browser.ask(f"location.pathname.endsWith('{end}')"):
                return ready(browser)
    raise AssertionError("the page did not open")


def reload(browser: Any) -> None:
    """And wait for the new page: the old one is ready too, and may be asked until it goes."""
    browser.ask("window.old = 'page'")
    browser.call("Page.reload")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(AssertionError):
            if browser.ask("window.old !== 'page'"):
                return ready(browser)
    raise AssertionError("the page did not come again")


def look_now(browser: Any) -> None:
    """As when somebody comes back to the page: it asks at once instead of after two seconds."""
    browser.ask("document.dispatchEvent(new Event('visibilitychange'))")


def problems(browser: Any, site: Site) -> list[str]:
    """What the browser complains of, and what it fetched from anywhere but the server."""
    return [found for found in browser.problems() if not found.startswith(f"fetched {site.origin}/{site.token}/")]


def type_into(browser: Any, field: str, value: str) -> None:
    browser.ask(
        f"(field => {{ field.value = '{value}'; field.dispatchEvent(new Event('input', {{ bubbles: true }})); }})"
        f"(document.querySelector('#filters [name={field}]'))"
    )


def test_the_list_is_filtered_and_sorted(browser: Any, site: Site) -> None:
    visit(browser, site.address)
    newest_first = [
        "7-model_parallel", "6-parameter_server", "5-pipeline", "4-locked", "3-hogwild", "2-ddp", "1-single", "0-single",
    ]  # fmt: skip
    assert browser.ask(NAMES) == newest_first
    type_into(browser, "text", "hog GLYPHS")
    assert browser.ask(NAMES) == ["3-hogwild"]
    assert browser.ask("document.getElementById('count').textContent") == "1 of 8 runs"
    type_into(browser, "text", "")
    type_into(browser, "strategy", "single")
    assert browser.ask(NAMES) == ["1-single", "0-single"]
    reload(browser)  # what was chosen stands in the address
    assert browser.ask(NAMES) == ["1-single", "0-single"]
    type_into(browser, "strategy", "")
    type_into(browser, "status", "failed")
    assert len(browser.ask(NAMES)) == 1
    type_into(browser, "status", "")
    browser.ask("document.querySelector('[data-key=speed] button').focus()")
    browser.press("Enter", 13)
    assert browser.ask(NAMES)[:2] == ["3-hogwild", "2-ddp"]
    assert browser.ask("document.querySelector('[data-key=speed]').getAttribute('aria-sort')") == "descending"
    type_into(browser, "text", "nothing like that")
    assert browser.ask("document.getElementById('nothing').textContent") == "No stored run matches."
    assert problems(browser, site) == []


def test_a_run_is_followed_to_its_end_without_loading_the_page_again(browser: Any, site: Site, folder: Path) -> None:
    with held(folder / "live"):
        writer = train(folder / "live", range(1, 60))
        try:
            visit(browser, site.address)
            browser.ask("window.same = 'page'")
            browser.wait(f"({CARD} || '').includes('step 59 of 400 · epoch 1 of 4 · 2 ranks on cpu · 4,321 samples/s')")
            browser.ask("document.querySelector('.card a').focus()")
            tell(writer, 60)
            browser.wait(f"{CARD}.includes('step 60 of 400')")
            assert browser.ask("window.same") == "page"
            assert browser.ask("document.activeElement === document.querySelector('.card a')")
            browser.ask("document.activeElement.click()")
            arrive(browser)
            browser.ask("window.same = 'page'")
            assert browser.ask(CURVE) == 60
            assert {"chart-loss-steps", "chart-phases"} <= set(browser.ask(DRAWN))
            assert (
                browser.ask("document.querySelector('.ranks').textContent")
                == "rank 0: step 60, forwardrank 1: step 60, wait"
            )
            assert len(set(browser.ask(COLOURS))) == 1, "a run that goes on was as red as one that failed"
            browser.ask("document.querySelector('#runs details').open = true")
            for step in range(61, 100):
                tell(writer, step)
            look_now(browser)
            browser.wait(f"{NOW}.includes('step 99 of 400') && {CURVE} === 99")
            assert browser.ask("document.querySelector('#runs details').open")
        finally:
            writer.close()
        writer.run.losses, writer.run.samples_per_second = [1.0, 0.5], 4321.0
        writer.run.save(folder / "live")
    look_now(browser)
    browser.wait("!document.querySelector('.now') && document.documentElement.dataset.every === '0'")
    assert browser.ask(CURVE) == 2  # the record's
    assert browser.ask("window.same") == "page"
    assert problems(browser, site) == []


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_runs_are_compared_on_the_spot(browser: Any, site: Site, width: int, dark: bool) -> None:
    visit(browser, site.address, width, dark)
    assert browser.ask(FITS), "the list scrolls sideways"
    browser.ask("document.getElementById('clear').click()")
    assert browser.ask("document.getElementById('choice').hidden")
    for name in ("3-hogwild", "0-single"):
        browser.ask(
            f"[...document.querySelectorAll('#runs-table tr')].find(row => row.textContent.includes('{name}')).querySelector('input').focus()"
        )
        browser.call(
            "Input.dispatchKeyEvent", type="keyDown", key=" ", code="Space", windowsVirtualKeyCode=32, text=" "
        )
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=" ", code="Space", windowsVirtualKeyCode=32)
    assert browser.ask("document.getElementById('chosen').textContent") == "2 runs chosen"
    browser.ask("document.getElementById('compare').click()")
    arrive(browser)
    assert browser.ask("document.querySelectorAll('#summary-table tbody tr').length") == 2
    assert "hogwild is" in browser.ask("document.querySelector('.conclusion').textContent")
    assert {"chart-speed", "chart-loss-steps", "chart-phases", "chart-timeline"} <= set(browser.ask(DRAWN))
    assert browser.ask(FITS), "the page scrolls sideways"
    browser.ask("document.querySelector('.back a').click()")
    arrive(browser, "/")
    assert browser.ask("document.getElementById('chosen').textContent") == "2 runs chosen"
    dark_now = browser.ask("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark_now == dark
    assert problems(browser, site) == []


def test_a_server_that_has_ended_is_named(browser: Any, folder: Path) -> None:
    with serving(folder) as site:
        visit(browser, site.address)
    look_now(browser)
    browser.wait("document.getElementById('notice').textContent.startsWith('The server does not answer')")
