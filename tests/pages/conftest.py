"""Runs made by hand for the report's tests, and a browser to open pages in."""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.record.run import Run

MACHINE = {"torch": "2.13.0", "python": "3.11.2", "cpu": "A processor", "gpu": None, "cores": 2, "system": "Linux 6.1"}
COMMAND = "manyhands compare glyphs single ddp hogwild locked pipeline parameter_server --ranks 2"


def make_run(strategy: str, speed: float | None = None, **fields: Any) -> Run:
    """A small record: a speed, its rounds within one percent, and whatever a test adds."""
    known: dict[str, Any] = {"task": "glyphs", "batch_size": 128, "threads": 1, "device": "cpu", "environment": MACHINE}
    if strategy != "single":
        known["ranks"] = 2
    if speed is not None:
        known |= {"samples_per_second": speed, "rounds": [0.99 * speed, speed, 1.01 * speed]}
    return Run(**{**known, "strategy": strategy, **fields})


def full_run(strategy: str, speed: float, phases: dict[str, float], final: float, **fields: Any) -> Run:
    """A record with everything in it, as a comparison writes it."""
    source = random.Random(f"{strategy}{fields.get('threads')}")
    run = make_run(strategy, speed, **fields)
    step = 128 / speed * 1000
    scale = step / sum(phases.values())
    run.phases_ms = {name: value * scale for name, value in phases.items()}
    run.steps = run.updates = 400
    run.samples, run.seconds = 400 * 128, 400 * step / 1000
    run.losses = [
        2.3 * math.exp(-i / 90) + 0.12 + source.gauss(0, 0.04) * (1 + 2 * math.exp(-i / 60)) for i in range(400)
    ]
    run.epochs = [
        {
            "epoch": epoch,
            "loss": run.losses[100 * epoch + 99],
            "seconds": run.seconds / 4,
            "samples": 12800,
            "learning_rate": 0.1,
            "test_accuracy": final - 0.09 * math.exp(-epoch * 1.2) - source.random() * 0.004,
        }
        for epoch in range(4)
    ]
    run.test = {
        "samples": 2000,
        "loss": 0.11,
        "accuracy": final,
        "per_class": {str(digit): min(1.0, final + source.gauss(0, 0.012)) for digit in range(10)},
    }
    run.per_rank = [
        {
            "rank": rank,
            "device": "cpu",
            "host": "here",
            "phases_ms": run.phases_ms,
            "peak_memory_bytes": int((290 + 12 * rank + source.random() * 40) * 2**20),
            "samples": run.samples // run.ranks,
        }
        for rank in range(run.ranks)
    ]
    busy = 52.0 if strategy == "single" and run.threads == 1 else 93.0
    run.usage = {"cores": [{"core": core, "mean_percent": busy - 4 * core} for core in range(2)], "gpus": []}
    run.step_ms = {"median": step, "p10": step * 0.93, "p90": step * 1.12}
    run.startup_seconds, run.evaluation_seconds, run.communication_bytes = 1.9, 0.6, 178_110.0
    run.command, run.started, run.weights_sha256 = COMMAND, "2026-03-02T10:11:12Z", "ab12" * 16
    run.timeline = _timeline(run)
    return run


def _timeline(run: Run) -> list[dict[str, Any]]:
    entries = []
    for rank in range(run.ranks):
        now = 0.4 * rank
        for step in range(3, 7):
            for phase, length in (run.phases_ms or {}).items():
                for _ in range(4 if run.strategy == "pipeline" and phase in ("forward", "backward", "wait") else 1):
                    length_now = length / (
                        4 if run.strategy == "pipeline" and phase in ("forward", "backward", "wait") else 1
                    )
                    entries.append(
                        {"rank": rank, "step": step, "phase": phase, "start_ms": now, "end_ms": now + length_now}
                    )
                    if run.overlapped_communication_ms and phase == "backward":
                        middle = now + length_now * 0.35
                        span = {"start_ms": middle, "end_ms": middle + run.overlapped_communication_ms}
                        entries.append({"rank": rank, "step": step, "phase": "communication", **span})
                    now += length_now
    return entries


def full_comparison() -> list[Run]:
    """Eight rows: both single ones, five that trained, one that was refused, one that failed."""
    compute = {"load": 0.6, "augment": 0.9, "forward": 8, "backward": 14, "update": 1.4, "other": 0.3}
    runs = [
        full_run("single", 4800, compute, 0.971),
        full_run("single", 7450, compute, 0.971, threads=2),
        full_run(
            "ddp",
            7510,
            {**compute, "communication": 2.1, "wait": 1.2},
            0.971,
            exact=True,
            overlapped_communication_ms=1.6,
        ),
        full_run("hogwild", 8350, {**compute, "wait": 0.2}, 0.958, exact=False, exact_reason="updates race"),
        full_run("locked", 5100, {**compute, "wait": 14}, 0.970),
        full_run(
            "pipeline",
            3900,
            {**compute, "communication": 5, "wait": 19},
            0.971,
            options={"chunks": 4, "schedule": "1f1b"},
        ),
        make_run(
            "parameter_server",
            status="failed",
            threads=None,
            reason="rank 1 of 2 failed in step 17, backward: RuntimeError: planted",
        ),
        make_run(
            "model_parallel",
            status="refused",
            threads=None,
            reason="model_parallel cannot cut this model: it has one layer",
        ),
    ]
    runs[2].losses[0] = runs[0].losses[0]  # it is exact
    runs[3].staleness = {"mean": 0.93, "max": 4, "histogram": [120, 610, 58, 9, 3]}
    runs[4].staleness = {"mean": 0.99, "max": 2, "histogram": [14, 780, 6]}
    runs[4].slow_rank = {"rank": 1, "phase": "forward", "behind_ms": 4.2}
    runs[5].notes = ["the last stage holds 61 % of the work"]
    return runs


def scaling_comparison(
    speeds: dict[str, dict[int, float]], cores: int = 8, weak: bool = False, **fields: Any
) -> list[Run]:
    """A comparison of strategies over several numbers of ranks, as `compare --ranks 1,2,4` records it."""
    compute = {"load": 0.6, "forward": 8, "backward": 14, "update": 1.4, "other": 0.3}
    shared = {"comparison": "one", "environment": {**MACHINE, "cores": cores}, **fields}
    most = max(ranks for of_ranks in speeds.values() for ranks in of_ranks)
    runs = []
    for threads in dict.fromkeys((max(1, cores // most), cores)):
        batch = {"batch_per_rank": 128} if weak else {}
        runs.append(
            full_run("single", 1000 * threads**0.7, compute, 0.97, threads=threads, asked="single", **batch, **shared)
        )
    for name, of_ranks in speeds.items():
        for ranks, speed in of_ranks.items():
            batch = {"batch_size": 128 * ranks, "batch_per_rank": 128} if weak else {}
            phases = {**compute, "communication": 1.0 * (ranks - 1), "wait": 0.6 * ranks * (ranks > 1)}
            known = {"ranks": ranks, "threads": max(1, cores // ranks), "asked": name, **batch, **shared}
            run = full_run(name, speed, phases, 0.968, **known)
            run.round_phases_ms = [dict(run.phases_ms or {})] * 3
            runs.append(run)
    return runs


@pytest.fixture(scope="session")
def scaled() -> Callable[..., list[Run]]:
    return scaling_comparison


@pytest.fixture
def runs() -> list[Run]:
    return full_comparison()


@pytest.fixture(scope="session")
def comparison() -> Callable[[], list[Run]]:
    return full_comparison


class Browser:
    """Chromium over its DevTools pipe: JSON messages that end in a zero byte, on descriptors 3 and 4."""

    FLAGS = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --hide-scrollbars --disable-dev-shm-usage --remote-debugging-pipe"
    )

    def __init__(self, program: str, profile: Path):
        theirs_in, mine_out = os.pipe()
        mine_in, theirs_out = os.pipe()
        high_in, high_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (theirs_in, theirs_out))

        def take_descriptors() -> None:
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        self.process = subprocess.Popen(
            [program, *self.FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=take_descriptors,
        )
        for end in (theirs_in, theirs_out, high_in, high_out):
            os.close(end)
        self._in, self._out, self._rest, self._number = mine_in, mine_out, b"", 0
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        self.shown: tuple[Path, int, bool] | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser did not answer for a minute"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has gone"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, page: Path, width: int = 1200, dark: bool = False) -> None:
        """Load a page anew and wait until its charts are drawn."""
        self.shown = None
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.resize(width)
        self.theme(dark)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("document.readyState === 'complete' && document.documentElement.dataset.ready === 'yes'")
        self.shown = (page, width, dark)

    def resize(self, width: int) -> None:
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def theme(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def wait(self, condition: str, seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while not self.ask(condition):
            assert time.monotonic() < deadline, f"still not so after {seconds} s: {condition}; {self.problems()}"
            time.sleep(0.05)

    def problems(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and whatever was fetched beside the page itself."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:400])
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"])[:400])
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif event.get("method") == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if params.get("type") != "Document" and not url.startswith(("data:", "blob:")):
                    found.append(f"fetched {url}")
        return found

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "char" else {}
            if kind == "char" and not text:
                continue
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(timeout=10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait(timeout=10)
        os.close(self._in)
        os.close(self._out)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium found (looked for chromium, chromium-browser, google-chrome)")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def make() -> Callable[..., Run]:
    return make_run
