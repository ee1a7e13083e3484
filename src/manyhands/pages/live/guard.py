"""Who may ask the server, and what every answer carries.

The token stands in the address, not in a cookie: browsers send a cookie of 127.0.0.1 to every port of it, so another
program on this machine would be handed it. Nothing of this needs a browser's help to be refused: a request without the
token gets nothing. The rest keeps pages of other origins out that might have learnt the address: a name that leads to
loopback only since a moment ago (DNS rebinding) is not a loopback name, and browsers say where a request comes from.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NEEDED = "This page opens with the address that `manyhands serve` prints; the token in it is new with every start."
FOREIGN = "Requests from pages of another origin are refused; type or paste the address that `manyhands serve` prints."
READ_ONLY = "This server only shows runs: GET and HEAD are all it answers."
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets requests through to the application that know the token and come from nowhere else than its own pages."""

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(item for item in more if item[0] not in given)]
            await send(message)

        if scope["type"] != "http":  # nothing else is spoken here
            return
        await self._answer(scope)(scope, receive, send_guarded)

    def _answer(self, scope: Scope) -> ASGIApp:
        """The application, or a refusal in its place."""
        if not _own_origin(scope):
            return PlainTextResponse(FOREIGN, status_code=403)
        _, first, *rest = scope["path"].split("/", 2)
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._knows(asked):
            return RedirectResponse(f"/{asked}/", status_code=303)
        if not rest or not self._knows(first):
            return PlainTextResponse(NEEDED, status_code=403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(READ_ONLY, status_code=405, headers={"Allow": "GET, HEAD"})
        scope["root_path"] = f"/{first}"
        return self._app

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="surrogateescape"), self._token)


def _own_origin(scope: Scope) -> bool:
    """Whether the host is loopback by its name and nothing says that another origin asks."""
    found: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value.decode("latin-1"))
    hosts = found.get(b"host", [])
    return (
        len(hosts) == 1
        and loopback(_hostname(hosts[0]))
        and all(origin == f"http://{hosts[0]}" for origin in found.get(b"origin", []))
        and all(site in ("same-origin", "none") for site in found.get(b"sec-fetch-site", []))
    )


def _hostname(host: str) -> str:
    """Without the port: behind a tunnel it is another one."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def loopback(name: str) -> bool:
    """Whether a name or an address leads to this machine alone."""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
