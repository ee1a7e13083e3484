"""What the server answers: the list of runs, what has changed in it, pages of runs, and the files that pages need."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ...errors import BadInput
from ...record.untrusted import plain
from ..standalone import plotly, script, templates
from .listing import Listing
from .view import page_of, tag_of

MOST_COMPARED = 40  # runs on a page
KEPT_PAGES = 8
COLUMNS = (
    ("name", "run", False),
    ("ranks", "ranks", True),
    ("status", "status", False),
    ("speed", "samples/s", True),
    ("accuracy", "accuracy", True),
    ("seconds", "time in steps", True),
    ("started", "started", True),
)
SCRIPT, STYLE = "text/javascript", "text/css"


def application(folder: Path) -> Starlette:
    """The routes over one folder. Paths of requests never become paths of files: runs and assets are looked up."""
    pages = Pages(folder)
    routes = [
        Route("/", pages.all_runs),
        Route("/api/runs", pages.changes),
        Route("/runs", pages.some_runs),
        Route("/assets/{name}", asset),
    ]
    return Starlette(routes=routes)


class Pages:
    """Functions without `async` are called in threads: one viewer's page does not keep another one waiting."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._listing = Listing(folder)
        self._made: OrderedDict[str, str] = OrderedDict()  # tag -> page, so that viewers of the same runs share one
        self._making = threading.Lock()

    def all_runs(self, request: Request) -> Response:
        template = templates().get_template("live/list.html.jinja")
        return HTMLResponse(template.render(folder=plain(f"{self._folder}/"), columns=COLUMNS))

    def changes(self, request: Request) -> Response:
        since = request.query_params.get("since", "0")
        return JSONResponse(self._listing.changes(int(since) if since.isdecimal() and len(since) < 16 else 0))

    def some_runs(self, request: Request) -> Response:
        ids = list(dict.fromkeys(request.query_params.getlist("id")))
        if not 0 < len(ids) <= MOST_COMPARED:
            return PlainTextResponse(f"choose 1 to {MOST_COMPARED} runs (chosen: {len(ids)})", status_code=400)
        try:
            views = self._listing.views(ids)
            tag = tag_of(views)
            if request.headers.get("if-none-match") == f'"{tag}"':
                return Response(status_code=304)
            with self._making:
                page = self._made.get(tag) or page_of(views)
                self._made[tag] = page
                while len(self._made) > KEPT_PAGES:
                    self._made.popitem(last=False)
        except BadInput as problem:
            return PlainTextResponse(str(problem), status_code=404)
        return HTMLResponse(page, headers={"ETag": f'"{tag}"'})


ASSETS = {
    "plotly.js": (plotly, SCRIPT),
    "charts.js": (lambda: script("charts.js"), SCRIPT),
    "page.js": (lambda: script("page.js"), SCRIPT),
    "view.js": (lambda: script("live/view.js"), SCRIPT),
    "list.js": (lambda: script("live/list.js"), SCRIPT),
    "page.css": (lambda: script("page.css"), STYLE),
    "live.css": (lambda: script("live/live.css"), STYLE),
}


def asset(request: Request) -> Response:
    """A script or a style sheet; they hold no figures, so a browser may keep them as long as the address is good."""
    found = ASSETS.get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("no such file", status_code=404)
    text, kind = found
    return Response(text(), media_type=kind, headers={"Cache-Control": "private, max-age=86400"})
