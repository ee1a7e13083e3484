"""The published MNIST job: on MNIST where it is to be had, else on drawn digits, and then the verdict says so."""

from collections.abc import Iterator

import pytest

from manyhands.data import files
from manyhands.record.run import Run
from manyhands.studies.lab import mnist_or_drawn as module
from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.experiments.loader_workers import EXPERIMENT
from manyhands.studies.lab.table import Row, Table


@pytest.fixture(autouse=True)
def looked_for_again() -> Iterator[None]:
    module.at_hand.cache_clear()
    yield
    module.at_hand.cache_clear()


def test_mnist_where_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "mnist", lambda: None)
    assert module.mnist_or_drawn().name == "mnist"
    assert module.mnist_or_drawn("slow,affine=no").name == "mnist:slow,affine=no"


def test_drawn_digits_where_it_is_not(monkeypatch: pytest.MonkeyPatch):
    def absent() -> None:
        raise files.DataNotFound("mnist: not found")

    monkeypatch.setattr(files, "mnist", absent)
    assert module.mnist_or_drawn().name == "mnist:drawn"
    assert module.mnist_or_drawn("slow").name == "mnist:slow,drawn"


def test_the_verdict_says_that_digits_were_drawn():
    scale = Scale(quick=True, cores=2, gpus=0)
    part = next(iter(EXPERIMENT.parts(scale)))

    def remark(task: str) -> str:
        return module.remark(Table(EXPERIMENT, scale, [Row(part, [Run(task, "single")], {})]))

    assert remark("mnist:slow") == ""
    assert remark("mnist:slow,drawn") == " MNIST was not at hand, so the images are digits drawn by the package."
