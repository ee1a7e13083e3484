"""When each rank of a pipeline does what: schedules run against a clock, as figures and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .pipeline_schedules import Action, Backward, Forward


@dataclass(frozen=True)
class Timeline:
    """When each rank did what: (start, end, action) for every action, from `simulate`."""

    ranks: tuple[tuple[tuple[float, float, Action], ...], ...]

    @property
    def total(self) -> float:
        return max((slots[-1][1] for slots in self.ranks if slots), default=0.0)

    @property
    def bubble(self) -> float:
        """The share of the ranks' time spent waiting, 0..1."""
        busy = sum(end - start for slots in self.ranks for start, end, _ in slots)
        return 1 - busy / (len(self.ranks) * self.total) if self.total else 0.0

    @property
    def held(self) -> tuple[int, ...]:
        """The most chunks whose activations each rank held at once (for several stages a rank: chunk-stages)."""
        most = []
        for slots in self.ranks:
            held = peak = 0
            for _, _, action in slots:
                held += 1 if isinstance(action, Forward) else -1
                peak = max(peak, held)
            most.append(peak)
        return tuple(most)

    def picture(self, column: float = 1.0) -> str:
        """The timeline in letters, one column per `column` of time: F0 is a forward pass of chunk 0, B0 its backward.

        Lower case marks a rank's second, fourth, ... stage.
        """
        columns = round(self.total / column)
        wide = max((len(_label(action, len(self.ranks))) for slots in self.ranks for _, _, action in slots), default=1)
        lines = []
        for rank, slots in enumerate(self.ranks):
            cells = ["."] * columns
            for start, end, action in slots:
                first, last = round(start / column), round(end / column)
                cells[first:last] = [_label(action, len(self.ranks))] * (last - first)
            lines.append(f"rank {rank}  " + " ".join(cell.ljust(wide) for cell in cells).rstrip())
        return "\n".join(lines)


def _label(action: Action, ranks: int) -> str:
    letter = "F" if isinstance(action, Forward) else "B"
    return f"{letter.lower() if action.stage // ranks % 2 else letter}{action.chunk}"


Cost = float | Callable[[int], float]


def simulate(
    plans: Sequence[Iterable[Action]], forward_time: Cost = 1.0, backward_time: Cost = 2.0, hop_time: float = 0.0
) -> Timeline:
    """Run one plan per rank against a clock: receiving waits, sending does not. Costs may depend on the stage.

    Raises ValueError where the plans wait for each other forever.
    """
    todo = [list(plan) for plan in plans]
    stages = 1 + max((action.stage for actions in todo for action in actions), default=0)
    ends: dict[tuple[type, int, int], float] = {}
    slots: list[list[tuple[float, float, Action]]] = [[] for _ in todo]
    moved = True
    while moved:
        moved = False
        for actions, done in zip(todo, slots, strict=True):
            while len(done) < len(actions):
                action = actions[len(done)]
                needs = _needs(action, stages)
                if not all(need in ends for need in needs):
                    break
                cost = forward_time if isinstance(action, Forward) else backward_time
                far = [ends[need] + (hop_time if need[2] != action.stage else 0.0) for need in needs]
                start = max([done[-1][1] if done else 0.0, *far])
                end = start + (cost(action.stage) if callable(cost) else cost)
                ends[type(action), action.chunk, action.stage] = end
                done.append((start, end, action))
                moved = True
    stuck = [actions[len(done)] for actions, done in zip(todo, slots, strict=True) if len(done) < len(actions)]
    if stuck:
        raise ValueError(f"these actions wait for each other forever: {', '.join(map(str, stuck))}")
    return Timeline(tuple(tuple(done) for done in slots))


def _needs(action: Action, stages: int) -> list[tuple[type, int, int]]:
    chunk, stage = action
    if isinstance(action, Forward):
        return [(Forward, chunk, stage - 1)] if stage else []
    after = [(Backward, chunk, stage + 1)] if stage + 1 < stages else []
    return [(Forward, chunk, stage), *after]
