"""Who may ask the live page: whoever knows the token, on loopback, from no other origin; and all they can do is read."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from manyhands.pages.live import listing
from manyhands.pages.live.server import Server
from manyhands.record.run import Run
from tests.conftest import Command
from tests.pages.live_runs import train

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    server = Server(folder, port=0)
    thread = Thread(target=server.run)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listing, "READ_SECONDS", 60.0)  # the first answer holds all runs, however slow the machine is
            yield Site(server.address)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


class Site:
    """A server as somebody asks it who may say anything."""

    def __init__(self, address: str):
        parts = urlsplit(address)
        self.address, self.host, self.port = address, parts.hostname, parts.port
        self.token = parts.query.removeprefix("token=")
        self.origin = f"http://{parts.netloc}"

    def ask(self, path: str, method: str = "GET", headers: list[tuple[str, str]] | None = None) -> tuple[int, str, Any]:
        """Status, text and headers; a Host is given unless there is one among the headers."""
        connection = HTTPConnection(str(self.host), self.port, timeout=60)
        given = headers or []
        connection.putrequest(
            method, path, skip_host=any(name == "Host" for name, _ in given), skip_accept_encoding=True
        )
        for name, value in given:
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        answer: HTTPResponse = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer.headers

    def get(self, path: str) -> str:
        status, text, _ = self.ask(f"/{self.token}/{path}")
        assert status == 200, text
        return text

    def runs(self) -> list[dict[str, Any]]:
        return list(json.loads(self.get("api/runs"))["runs"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, comparison: Callable[[], list[Run]]) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("runs")
    for number, run in enumerate(comparison()):
        run.save(folder / str(number))
    Run(HOSTILE, HOSTILE, reason=HOSTILE, status="failed").save(folder / "hostile")
    with serving(folder) as found:
        yield found


def test_the_address_leads_to_the_list_and_every_answer_is_guarded(site: Site) -> None:
    status, _, headers = site.ask(f"/?token={site.token}")
    assert (status, headers["location"]) == (303, f"/{site.token}/")
    for path in ("", "api/runs", f"runs?id={site.runs()[0]['id']}", "assets/page.js"):
        status, text, headers = site.ask(f"/{site.token}/{path}")
        assert status == 200, text
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == ("private, max-age=86400" if "assets" in path else "no-store")
        assert not [name for name in headers if name.lower().startswith(("access-control", "set-cookie", "server"))]


@pytest.mark.parametrize(
    "path", ["/", "/?token=", "/?token=nonsense", "/api/runs", "/nonsense/", "/nonsense/api/runs", "//", "/%ff/"]
)
def test_without_the_token_there_is_nothing(site: Site, path: str) -> None:
    status, text, headers = site.ask(path)
    assert status == 403
    assert "the address that `manyhands serve` prints" in text
    assert "content-security-policy" in headers


def test_a_token_is_good_as_a_whole_only(site: Site) -> None:
    for token in (site.token[:-1], site.token + "A", site.token[:-1] + ("A" if site.token[-1] != "A" else "B")):
        assert site.ask(f"/{token}/api/runs")[0] == 403
    assert site.ask(f"/api/runs?token={site.token}")[0] == 403


@pytest.mark.parametrize(
    "hosts", [["evil.example"], ["evil.example:8765"], ["127.0.0.1.evil.example"], ["127.0.0.1", "evil.example"], [""], ["[::1"], ["192.168.1.4"]]
)  # fmt: skip
def test_a_name_that_is_not_loopback_is_refused(site: Site, hosts: list[str]) -> None:
    """Whoever owns a name can let it lead to 127.0.0.1 for a moment; the browser then takes us for his server."""
    status, text, _ = site.ask(f"/{site.token}/api/runs", headers=[("Host", host) for host in hosts])
    assert status in (400, 403)  # h11 itself answers 400 to two hosts, or none
    assert "runs" not in text or "refused" in text


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:9000", "[::1]:8765"])
def test_a_tunnel_may_have_another_port(site: Site, host: str) -> None:
    assert site.ask(f"/{site.token}/", headers=[("Host", host)])[0] == 200


@pytest.mark.parametrize(
    "header",
    [("Origin", "http://evil.example"), ("Origin", "null"), ("Origin", "http://127.0.0.1:1"), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site")],
)  # fmt: skip
def test_another_origin_is_refused(site: Site, header: tuple[str, str]) -> None:
    status, text, headers = site.ask(f"/{site.token}/api/runs", headers=[header])
    assert (status, "another origin" in text) == (403, True)
    assert "access-control-allow-origin" not in headers


def test_its_own_pages_may_ask(site: Site) -> None:
    for header in (("Origin", site.origin), ("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "none")):
        assert site.ask(f"/{site.token}/api/runs", headers=[header])[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading(site: Site, method: str) -> None:
    assert site.ask(f"/{site.token}/api/runs", method)[0] == 405
    assert site.ask("/api/runs", method)[0] == 403
    assert site.ask(f"/{site.token}/api/runs", "HEAD")[:2] == (200, "")


@pytest.mark.parametrize(
    "path",
    ["assets/../../../../etc/passwd", "assets/..%2f..%2fetc%2fpasswd", "../../etc/passwd", "assets/", "runs?id=../0", "runs?id=0", "runs?id=%2fetc%2fpasswd", "etc/passwd"],
)  # fmt: skip
def test_paths_do_not_leave_the_folder(site: Site, path: str) -> None:
    status, text, _ = site.ask(f"/{site.token}/{path}")
    assert status == 404
    assert "root:" not in text


def test_how_many_runs_a_page_may_have(site: Site) -> None:
    for ids in ("", "&".join(f"id={number}" for number in range(41))):
        status, text, _ = site.ask(f"/{site.token}/runs?{ids}")
        assert (status, text[:20]) == (400, "choose 1 to 40 runs ")


def test_strings_of_records_stay_strings(site: Site) -> None:
    [row] = [row for row in site.runs() if row["folder"] == "hostile"]
    assert row["task"] == HOSTILE  # as JSON, which the list shows as text
    page = site.get(f"runs?id={row['id']}")
    assert "alert(1)" in page
    assert HOSTILE not in page
    assert "<script>alert" not in page
    assert "<img" not in page


def test_a_page_of_runs_is_that_of_the_report(site: Site, comparison: Callable[[], list[Run]]) -> None:
    """The same sentences, table and charts: there is no second way to draw."""
    from manyhands.pages.page import page

    chosen = [row for row in site.runs() if row["folder"] in ("0", "2")]
    shown = site.get("runs?" + "&".join(f"id={row['id']}" for row in chosen))
    written = page([Run.load(Path(str(run))) for run in stored(shown)])
    for part in (
        r'<p class="conclusion">.*?</p>',
        r'<table class="summary".*?</table>',
        r'id="chart-data">(.*?)</script>',
    ):
        assert re.findall(part, shown, re.S) == re.findall(part, written, re.S) != []


def stored(page: str) -> list[str]:
    """The folders that a page names."""
    return re.findall(r"<dt>folder</dt><dd>(.*?)</dd>", page)


def test_an_unchanged_page_is_not_sent_again(site: Site) -> None:
    path = f"/{site.token}/runs?id={site.runs()[0]['id']}"
    _, _, headers = site.ask(path)
    assert site.ask(path, headers=[("If-None-Match", headers["etag"])])[:2] == (304, "")
    assert site.ask(path, headers=[("If-None-Match", "another")])[0] == 200


def test_viewers_at_once_see_a_run_go_on(tmp_path: Path) -> None:
    train(tmp_path / "r", range(1, 30))
    with serving(tmp_path) as site, ThreadPoolExecutor(8) as viewers:
        [row] = site.runs()
        pages = list(viewers.map(site.get, [f"runs?id={row['id']}", "api/runs"] * 8))
    assert all("step 29 of 400" in page for page in pages[::2])
    assert all('"step":29' in page for page in pages[1::2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no folder nowhere; runs are kept in runs/"),
        ([".", "--host", "0.0.0.0"], "serve listens on this machine alone (host: 0.0.0.0, not a loopback address)"),
        ([".", "--host", "example.org", "--port", "9"], "ssh -L 9:127.0.0.1:9 THIS_HOST"),
        ([".", "--port", "70000"], "--port"),
    ],
)
def test_what_cannot_be_served(words: list[str], message: str, command: Command) -> None:
    code, out, err = command("serve", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


def test_a_port_in_use(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = command("serve", ".", "--port", str(port))
    assert (code, out) == (2, "")
    assert (
        err
        == f"manyhands: cannot listen on 127.0.0.1, port {port}: it is in use; choose another --port, or 0 for a free one\n"
    )


def test_without_the_packages(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, out, err = command("serve", ".")
    assert (code, out) == (2, "")
    assert err.endswith("is not installed (uvicorn); pip install 'manyhands[serve]'\n")


def test_ctrl_c_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "manyhands", "serve", ".", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        site = Site(process.stdout.readline().strip())
        assert site.runs() == []
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "")
        assert err == "open this address in a browser; Ctrl-C ends the server\n"
    finally:
        process.kill()
        process.wait()
