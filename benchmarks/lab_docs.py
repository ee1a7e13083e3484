"""Writes the measured part of docs/lab.md and its pictures from finished experiments.

    manyhands lab loader-workers                                      # on the machine to speak of
    python benchmarks/lab_docs.py runs/lab-*                          # folders with a result.json, or such files
    python benchmarks/lab_docs.py fetched/*/result.json --commit ab12cd3

Each experiment has a part of its own between two markers, the quick run beside the whole one: those that are given are
written anew, all others and the text around stay as they are. The list of experiments is written anew each time, also
without a result.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from svg_chart import Axis, Line, Panel, chart

from manyhands.pages.lab_charts import lines_of
from manyhands.pages.lab_page import MARKS, UNKNOWN, seeds_text, table_rows
from manyhands.studies.lab.catalogue import NAMES, experiments

ROOT = Path(__file__).parents[1]
LIST = "<!-- experiments: made by benchmarks/lab_docs.py -->", "<!-- end of experiments -->"
RESULTS = "<!-- results: made by benchmarks/lab_docs.py -->", "<!-- end of results -->"
PART = re.compile(r"<!-- lab: (\S+) -->\n(.*?)(?=<!-- lab: |\Z)", re.DOTALL)
Result = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", nargs="*", type=Path, help="folders of finished experiments, or their result.json")
    parser.add_argument("--commit", help="of the code that was measured (default: the one checked out)")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "lab.md")
    asked = parser.parse_args()
    commit = asked.commit or _checked_out()
    found = {}
    for given in asked.results:
        file = given / "result.json" if given.is_dir() else given
        if not file.is_file():
            sys.exit(f"no result at {given}: run `manyhands lab NAME` first")
        result = json.loads(file.read_text(encoding="utf-8"))
        key = result["experiment"] + ("-quick" if result["quick"] else "")
        found[key] = part(result, key, commit, asked.page.parent / "images")
    text = between(LIST, asked.page.read_text(encoding="utf-8"), lambda _: experiment_list())
    text = between(RESULTS, text, lambda inside: results(inside, found))
    asked.page.write_text(text, encoding="utf-8")
    print(f"{asked.page}: {', '.join(found) or 'the list of experiments'}")


def _checked_out() -> str:
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def between(markers: tuple[str, str], text: str, change: Callable[[str], str]) -> str:
    """The text with what stands between two markers changed."""
    before, start, rest = text.partition(markers[0])
    inside, end, after = rest.partition(markers[1])
    if not start or not end:
        sys.exit(f"the page has no markers {markers[0]} and {markers[1]}")
    changed = change(inside).strip()
    return before + start + (f"\n\n{changed}\n\n" if changed else "\n") + end + after


def experiment_list() -> str:
    lines = ["| experiment | published claim | takes, quick and in full |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {one.claim} | {', '.join(filter(None, one.takes)) or '-'} |" for one in experiments()]
    return "\n".join(lines)


def results(inside: str, found: Mapping[str, str]) -> str:
    """These parts in place of those of the same experiments, in the order of the lab."""
    parts = {**dict(PART.findall(inside)), **found}
    order = sorted(parts, key=_place)
    body = "".join(f"<!-- lab: {key} -->\n{parts[key].strip()}\n\n" for key in order)
    return f"{overview([parts[key] for key in order])}\n\n{body}"


def overview(parts: Sequence[str]) -> str:
    """A line per experiment: whether its claim holds, and where to read on."""
    lines = []
    for one in parts:
        title, sign = re.findall(r"^### (.*)$|^> \*\*(.)\*\*", one, re.MULTILINE)[:2]
        anchor = re.sub(r"[^\w -]", "", title[0].lower()).replace(" ", "-")
        lines.append(f"- {sign[1]} [{title[0]}](#{anchor})")
    return "\n".join(lines)


def _place(key: str) -> tuple[int, str]:
    name = key.removesuffix("-quick")
    return (NAMES.index(name) if name in NAMES else len(NAMES), key)


def part(result: Result, key: str, commit: str, images: Path) -> str:
    """What docs/lab.md says about one experiment; its pictures are written beside."""
    sign, _ = MARKS.get(result["holds"], UNKNOWN)
    reduced = f"Reduced (`--quick`): {result['note']}.\n\n" if result["quick"] else ""
    here = result["environment"]
    machine = ", ".join(
        [str(here["gpu"])] * bool(here.get("gpu"))
        + [f"{here.get('cores')} cores of {here.get('cpu')}", f"torch {here.get('torch')}"]
    )
    facts = (
        f"{machine}, Python {here.get('python')}, manyhands {result['version']} ({commit}), {str(result['date'])[:10]}."
    )
    return (
        f"### {result['title']}{' (quick)' if result['quick'] else ''}\n\n> **{sign}** {result['verdict']}\n\n{reduced}"
        f"{table(result)}\n\nPublished with: {result['source']}. Measured: {seeds_text(result)}. {facts} "
        f"Again: `{result['command']}`.\n\n{pictures(result, key, images)}"
    )


def table(result: Result) -> str:
    """A column a figure: the median, in brackets the lowest and the highest, and below what was published."""
    columns = result["columns"]
    lines = [["", *(column["heading"] for column in columns)], ["---", *["---:"] * len(columns)]]
    for row in table_rows(result):
        cells = [row["cells"][column["key"]] for column in columns]
        measured = [f"{middle} ({spread})" if spread else middle or "-" for _, middle, spread in cells]
        problem = f": {row['problem']}" if row["problem"] else ""
        lines.append([f"**{row['label']}**{problem}", *measured])
        if any(published for published, _, _ in cells):
            lines.append(["published", *(published for published, _, _ in cells)])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def pictures(result: Result, key: str, images: Path) -> str:
    """The curves as SVG files, and what shows them."""
    images.mkdir(exist_ok=True)
    for old in images.glob(f"lab-{key}-[0-9]*.svg"):
        old.unlink()
    shown = []
    for number, curve in enumerate(result["curves"], start=1):
        lines = [Line(line["name"], points, published=line["published"]) for line, points in lines_of(curve)]
        if not lines:
            continue
        places = sorted({point[0] for line in lines for point in line.points})
        few = places if len(places) <= 8 and all(x == int(x) for x in places) else None
        steep = curve["logarithmic"]
        panel = Panel(curve["title"], Axis(curve["x"], "x" in steep, few), Axis(curve["y"], "y" in steep), lines)
        name = f"lab-{key}-{number}.svg"
        (images / name).write_text(chart(f"{result['title']}: {curve['title']}", [panel]), encoding="utf-8")
        shown.append(f"![{curve['title']}](images/{name})\n")
    return "\n".join(shown)


if __name__ == "__main__":
    main()
