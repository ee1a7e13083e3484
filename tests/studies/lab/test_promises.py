"""Every experiment keeps the frame's promises: it is listed, its parts can be run, its judge copes with what is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from manyhands.strategies import make_strategy
from manyhands.studies.lab.catalogue import NAMES, experiment, experiments
from manyhands.studies.lab.experiment import Scale
from manyhands.studies.lab.part_task import task_of
from manyhands.studies.lab.running import _settings
from manyhands.studies.lab.table import Row, Table
from manyhands.training.settings import FitSettings

SCALES = [Scale(True, 1, 0), Scale(True, 16, 1), Scale(False, 2, 0), Scale(False, 64, 8)]


def test_the_list_says_what_the_experiments_say():
    for entry, whole in zip(experiments(), map(experiment, NAMES), strict=True):
        assert entry == (whole.name, whole.title, whole.claim, whole.takes)
        assert entry.name == whole.name


def test_the_list_needs_no_torch():
    """It took three seconds to say what there is."""
    asked = "import sys; from manyhands.cli import lab_tables; from manyhands.studies.lab import catalogue; "
    shown = "lab_tables.show_experiments(catalogue.experiments()); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked + shown], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_every_part_can_be_made_on_every_machine(name: str, scale: Scale):
    chosen = experiment(name)
    parts = list(chosen.parts(scale))
    assert len({part.label for part in parts}) == len(parts) > 1
    keys = {column.key for column in chosen.columns}
    for part in parts:
        task_of(part, seed=1)
        fit = {"device": chosen.device, **part.fit}
        make_strategy(part.strategy, fit.pop("ranks", None))
        FitSettings.of(progress=False, **fit)
        assert set(part.published) <= keys
        assert "0x" not in _settings(chosen, part, 0)  # an address: it would be run again every time


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_no_judge_stumbles_over_rows_that_did_not_run(name: str, scale: Scale):
    """All of them, then each in turn among figures that are all alike."""
    chosen = experiment(name)
    alike = [Row(part, [], {one.key: [1.0, 1.0] for one in chosen.columns}) for part in chosen.parts(scale)]
    lost = [replace(row, figures={}, problem="it was refused") for row in alike]
    verdict = chosen.judge(Table(chosen, scale, lost))
    assert verdict.holds is None
    for place in range(len(alike)):
        for row in ([lost[place]], []):
            chosen.judge(Table(chosen, scale, [*alike[:place], *row, *alike[place + 1 :]]))
    for curve in chosen.curves:
        assert not any(line.points for line in curve.lines(Table(chosen, scale, lost)) if not line.published)
