"""Plants: the files of the zoo, and what each of them says of itself. A file is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
KINDS = ("speed", "correctness")
WORDS = ("CAUSE", "STRATEGY", "OPTIONS", "HEALTHY_STRATEGY", "HEALTHY_OPTIONS", "RANK", "CURE")


@dataclass(frozen=True)
class Plant:
    """One file: a job with a fault, its healthy twin, and what a tool should say of the fault."""

    path: Path
    kind: str  # speed or correctness
    cause: str  # the word a tool should answer with; "none" where nothing is wrong although it looks so
    strategy: str
    options: tuple[str, ...]
    healthy_strategy: str
    healthy_options: tuple[str, ...]
    rank: int | None  # the culprit, where it is one rank
    cure: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def script(self) -> bool:
        """Whether this is a training script of its own; else it defines `task` and `healthy`."""
        return self.path.parent.name == "scripts"

    def words(self, healthy: bool, *more: str) -> list[str]:
        """What a tool gets on its command line, with `more` options of its own."""
        if self.script:  # what is behind -- is the script's own
            return [str(self.path), *self.options, *more, *(["--", "--healthy"] if healthy else [])]
        if healthy:
            return [f"{self.path}:healthy", self.healthy_strategy, *self.healthy_options, *more]
        return [str(self.path), self.strategy, *self.options, *more]


def read(path: Path, kind: str) -> Plant:
    """The constants of a file."""
    found: dict[str, Any] = {}
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and line.targets[0].id in WORDS:
            found[line.targets[0].id] = ast.literal_eval(line.value)
    if "CAUSE" not in found:
        raise ValueError(f"{path} says no CAUSE")
    strategy, options = found.get("STRATEGY", "single"), tuple(found.get("OPTIONS", ()))
    return Plant(
        path,
        kind,
        found["CAUSE"],
        strategy,
        options,
        found.get("HEALTHY_STRATEGY", strategy),
        tuple(found.get("HEALTHY_OPTIONS", options)),
        found.get("RANK"),
        found.get("CURE", ""),
    )


def plants(kinds: Sequence[str] = KINDS, names: Sequence[str] = ()) -> list[Plant]:
    """All plants of these kinds, or those of them that are named."""
    paths = [
        (path, kind)
        for kind in kinds
        for pattern in ("*.py", "scripts/*.py")
        for path in sorted((FOLDER / kind).glob(pattern))
        if not path.name.startswith("_")
    ]
    known = {path.stem for path, _ in paths}
    for name in names:
        if name not in known:
            raise ValueError(f'no plant named "{name}" (there are: {", ".join(sorted(known))})')
    return [read(path, kind) for path, kind in paths if not names or path.stem in names]
