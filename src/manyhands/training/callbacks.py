"""The user's callbacks: on_step and on_epoch see the figures of rank 0, and end the fit when they return true."""

from __future__ import annotations

from typing import Any

from ..data.order import Order, PlannedStep
from ..strategies.contract import Worker
from ..world.rank import Rank
from .figures import RankFigures
from .losses import Known, weighted_mean
from .observers import Ask, Observer


class Figures(dict[str, Any]):
    """What callbacks see: a dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no figure named {name!r}; there are: {', '.join(self)}") from None


class OnStep(Observer):
    """Lets the user's on_step look at every step; all ranks follow its word after the same step."""

    def __init__(self, rank: Rank, order: Order, worker: Worker, figures: RankFigures):
        self.rank, self.order, self.worker, self.figures = rank, order, worker, figures
        self._together = figures.lockstep or rank.processes == 1

    def after_step(self, step: PlannedStep) -> Ask | None:
        done = step.before + 1
        with self.rank.clock.during("other"):
            self.figures.losses.read()
            latest = self.figures.losses.latest
            mine = [latest] if latest is not None and latest[0] == step.before else []
            everyone = (self.rank.gather(mine) or []) if self._together else [mine]
            stop = False
            if self.rank.leads:
                stop = bool(self.rank.ask("on_step", self._seen(step, [loss for own in everyone for loss in own])))
            stop = bool(self.rank.agree(stop)) if self._together else self._stop_together(stop, done)
        return Ask(stop=f"on_step ended the run after step {done}") if stop else None

    def _stop_together(self, stop: bool, done: int) -> bool:
        """Asynchronous ranks stop after the first step that none of them has passed."""
        board = self.rank.board
        with board.locked():
            board.finish(self.rank.index, done)
            if stop and board.stop_after < done:  # once agreed it stays: others may have stopped there already
                board.stop_after = board.first_common(self.rank.index, done)
        return board.stop_after == done

    def _seen(self, step: PlannedStep, losses: list[Known]) -> Figures:
        return Figures(
            step=step.before + 1,
            epoch=step.epoch + 1,
            loss=weighted_mean(losses),
            samples=self.order.samples_up_to(step),
            seconds=self.rank.clock.seconds,
            learning_rate=self.worker.learning_rate,
        )


class OnEpoch(Observer):
    """Lets the user's on_epoch look at every epoch."""

    def __init__(self, rank: Rank, figures: RankFigures):
        self.rank, self.figures = rank, figures

    def after_epoch(self, last: PlannedStep) -> Ask | None:
        stop = False
        if self.rank.leads:
            stop = bool(self.rank.ask("on_epoch", Figures(self.figures.history.epochs[-1], step=last.before + 1)))
        return Ask(stop=f"on_epoch ended the run after epoch {last.epoch + 1}") if self.rank.agree(stop) else None
