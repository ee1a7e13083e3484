"""The rows of a comparison: every strategy with every number of ranks asked for, and the threads each rank may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadInput, Refused
from ..record.run import Run
from ..strategies import make_strategy
from ..strategies.contract import Strategy, processes
from ..strategies.table import HANDFUL, strategy_class
from ..task import Task
from ..training.attempts import preload
from ..training.proof.tried import Tried
from ..training.settings import FitSettings
from ..world.devices import default_ranks
from ..world.engines.engine import Engine
from ..world.engines.local import Local


@dataclass
class Contender:
    """One row: a strategy with so many ranks, or the reason why it cannot have them."""

    asked: str  # the strategy as it was asked for, whatever its ranks
    name: str  # with the options it has
    ranks: int
    strategy: Strategy | None
    threads: int | None = None  # of each rank
    refusal: str | None = None
    counted: bool = False  # another row has this name and other ranks
    task: Task = field(init=False)
    tried: Tried = field(init=False)  # of rows with this task
    batch_per_rank: int | None = None  # where batches grow with the ranks
    notes: list[str] = field(default_factory=list)
    run: Run | None = None
    slices: list[Run] = field(default_factory=list)  # one per round that ended well

    @property
    def single(self) -> bool:
        return self.name == "single"

    @property
    def label(self) -> str:
        if self.single:
            return f"single, {self.threads} thread{'s' * (self.threads != 1)}"
        return f"{self.name} on {self.ranks} rank{'s' * (self.ranks != 1)}" if self.counted else self.name

    @property
    def folder(self) -> str:
        name = self.name.translate(str.maketrans(":=,/", "----"))
        if self.single:
            return f"{name}-{self.threads}t"
        return f"{name}-{self.ranks}r" if self.counted else name


def rank_counts(ranks: int | Iterable[int] | None) -> Sequence[int | None]:
    """The numbers of ranks asked for, each once, the smallest first; [None] where that is left to the strategies."""
    if ranks is None:
        return [None]
    found: list[Any] = list(ranks) if isinstance(ranks, Iterable) and not isinstance(ranks, str) else [ranks]
    for count in found:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise BadInput(f"ranks must be a whole number of at least 1 (found {count!r})")
    if not found:
        raise BadInput("ranks is an empty list; give a number, or a list such as [1, 2, 4]")
    return sorted(set(found))


def contenders(
    strategies: Sequence[str | Strategy] | None,
    ranks: int | Iterable[int] | None,
    threads: int | None,
    engine: Engine | None = None,
    survives: bool = False,
) -> list[Contender]:
    """The rows in the order asked for, few ranks first; `single` becomes two, and is added where it is missing.

    The engine (default: this host) says which rows it has no room for, and shares out its cores where `threads` is
    not given.
    """
    engine = engine or Local()
    if isinstance(strategies, str | Strategy):
        strategies = [strategies]
    counts = rank_counts(ranks)
    fitting = Fitting(engine, survives)
    found = [row for spec in strategies or HANDFUL for row in _rows(spec, counts, fitting)]
    others = list({(row.name, row.ranks): row for row in found if not row.single}.values())
    several = Counter(row.name for row in others)
    engine.reserve(max(fitting.admitted, default=1))
    for row in others:
        row.counted = several[row.name] > 1
        row.threads = threads or fitting.threads(row.strategy)
    for row in others:  # a rank is the same in every row of a strategy: more of them are more cores
        row.threads = (
            min(other.threads for other in others if other.asked == row.asked and other.threads)
            if row.threads
            else None
        )
    alone = make_strategy("single")
    wide = threads or fitting.threads(alone) or 1
    widest = max((row for row in others if row.strategy), key=lambda row: row.ranks, default=None)
    narrow = widest.threads if widest else threads or max(1, wide // (counts[-1] or default_ranks()))
    return [*(Contender("single", "single", 1, alone, count) for count in dict.fromkeys((narrow, wide))), *others]


@dataclass
class Fitting:
    """Asks an engine whether it has room for a row, once for each number of processes."""

    engine: Engine
    survives: bool
    admitted: set[int] = field(default_factory=set)

    def admit(self, strategy: Strategy) -> None:
        if processes(strategy) not in self.admitted:
            with suppress(Refused):  # the fit says it again, as the reason of its row
                self.engine.check(processes(strategy), str(strategy), self.survives)
            self.admitted.add(processes(strategy))

    def threads(self, strategy: Strategy | None) -> int | None:
        """Of each rank; None for a row without any."""
        if strategy is None:
            return None
        with suppress(Refused):
            self.engine.check(processes(strategy), str(strategy), self.survives)
        return self.engine.threads(strategy.ranks)


def _rows(spec: str | Strategy, counts: Sequence[int | None], fitting: Fitting) -> list[Contender]:
    """A number that a strategy cannot have is a row with its reason, as long as it can have another one."""
    asked, own = _asked(spec)
    if asked == "single" or (own in counts and len(counts) > 1):
        counts = [None]
    rows, problems = [], []
    for count in counts:
        try:
            made = make_strategy(spec, count)
            fitting.admit(made)
            rows.append(Contender(asked, str(made), made.ranks, made))
        except BadInput as problem:
            problems.append(problem)
            if count is not None:
                rows.append(Contender(asked, asked, count, None, refusal=str(problem)))
    if len(problems) == len(counts):
        raise problems[0]
    return rows


def _asked(spec: str | Strategy) -> tuple[str, int | None]:
    """The strategy without its ranks, and those where it names them."""
    if isinstance(spec, Strategy):
        return str(spec), spec.ranks
    name, _, text = str(spec).partition(":")
    options = [part for part in text.split(",") if part]
    own = [part[len("ranks=") :] for part in options if part.startswith("ranks=")]
    rest = ",".join(part for part in options if not part.startswith("ranks="))
    name = strategy_class(name).name
    return f"{name}:{rest}" if rest else name, int(own[-1]) if own and own[-1].isdecimal() else None


def modules_of(rows: Sequence[Contender], settings: FitSettings) -> list[str]:
    """What the processes of some row import before they start. Where it is imported for all rows beforehand, the memory of
    a rank does not depend on which rows came before its own."""
    strategies = [row.strategy for row in rows if row.strategy is not None]
    return [*dict.fromkeys(name for strategy in strategies for name in preload(strategy, settings))]
