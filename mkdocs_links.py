"""The site's pages from files outside docs/, and the links between both.

README.md is the start page; CONTRIBUTING.md, CHANGELOG.md and every other file that a page links to become pages too,
so that one relative link works on a code host and on the site. mkdocs calls the two functions below (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
IN_NAVIGATION = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```.*?^```)", flags=re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every file outside docs/ that some page leads to, directly or through another of them."""
    to_read = [*IN_NAVIGATION, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(to_read)
    for path in to_read:  # grows while it is read
        for target in targets(path, (ROOT / path).read_text()):
            if target not in seen and (ROOT / target).is_file() and not target.startswith("docs/"):
                to_read += [target] if target.endswith(".md") else []
                seen.add(target)
    for path in sorted(path for path in seen if not path.startswith("docs/")):
        inclusion = InclusionLevel.UNDEFINED if path in IN_NAVIGATION else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, site_path(path), content=as_page(path), inclusion=inclusion))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as they lead on the site."""
    here = in_repository(page.file)

    def moved(target: str) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if files.get_file_from_path(site_path(path)) is None:
            return target  # mkdocs reports it
        return posixpath.relpath(site_path(path), posixpath.dirname(page.file.src_uri) or ".")

    return outside_code(markdown, lambda text: LINK.sub(lambda link: link[1] + link_to(link[2], moved) + link[3], text))


def targets(path: str, markdown: str) -> Iterable[str]:
    """The files of the repository that a page links to."""
    if not path.endswith(".md"):
        return
    for _, target, _ in LINK.findall(FENCE.sub("", markdown)):
        if not elsewhere(target):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def site_path(path: str) -> str:
    """Where a file of the repository stands on the site; a file of code is a page around it."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def in_repository(file: File) -> str:
    return file.src_uri if file.generated_by else os.path.join("docs", file.src_uri)


def as_page(path: str) -> str:
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    language = "python" if path.endswith(".py") else "text"
    return f"# {path}\n\n````{language}\n{text}````\n"


def link_to(target: str, moved: Callable[[str], str]) -> str:
    return target if elsewhere(target) else moved(target)


def elsewhere(target: str) -> bool:
    return re.match(r"[a-z]+:", target) is not None


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    return "".join(text if number % 2 else change(text) for number, text in enumerate(FENCE.split(markdown)))
