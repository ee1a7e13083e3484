"""first-device: its rows on every machine, its judge on tables made up, and a real run that shows the effect."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manyhands.record.run import Run
from manyhands.strategies import make_strategy
from manyhands.studies.lab.experiment import Part, Scale
from manyhands.studies.lab.experiments.first_device import (
    BALANCED,
    EXPERIMENT,
    GATHERED,
    OUTPUTS,
    busy,
    label,
    language_model,
    memory,
    sentences,
)
from manyhands.studies.lab.progress import LabProgress
from manyhands.studies.lab.running import run_parts
from manyhands.studies.lab.table import Row, Table
from manyhands.training.settings import FitSettings

QUICK = Scale(quick=True, cores=2, gpus=0)
SCALES = [Scale(quick, cores, gpus) for quick in (True, False) for cores in (2, 16) for gpus in (0, 1, 4)]
SMALL, LARGE = OUTPUTS


def made_up(without: str = "", **changes: dict[str, list[float]]) -> Table:
    """Twice the memory and four times the work on the first under data_parallel; as much as the others under balanced."""
    rows = []
    for part in EXPERIMENT.parts(QUICK):
        more, longer = (1, 1) if part.strategy == BALANCED else (2, 4)
        figures = {
            "memory": [more * 5.0] * 2,
            "memory_others": [5.0] * 2,
            "busy": [longer * 0.1] * 2,
            "busy_others": [0.1] * 2,
        }
        rows.append(Row(part, [], figures | changes.get(part.label, {})))
    return Table(EXPERIMENT, QUICK, [row for row in rows if row.label != without])


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_rows_can_be_run(scale: Scale):
    parts = list(EXPERIMENT.parts(scale))
    assert len({part.label for part in parts}) == len(parts) == 4
    for part in parts:
        fit = dict(part.fit)
        assert make_strategy(part.strategy, fit.pop("ranks")).ranks == (
            scale.gpus if scale.gpus > 1 else min(8, scale.cores)
        )
        assert FitSettings.of(progress=False, **fit).device == ("auto" if scale.gpus > 1 else "cpu")
    assert [part.label for part in parts if part.published] == [label(GATHERED, SMALL)]


def test_a_first_replica_that_carries_more_bears_the_claim_out():
    verdict = EXPERIMENT.judge(made_up())
    assert verdict.holds is True
    assert "works 4.0x as long as the others and holds 2.0x the memory where outputs are small" in verdict.measured
    assert "balanced_data_parallel makes that 1.0x and 1.0x." in verdict.measured
    assert verdict.why.endswith("Where outputs stay and each replica takes its own loss, most of it is gone.")


def test_an_effect_that_balancing_leaves_is_named():
    kept = {"memory": [10.0, 10.0], "busy": [0.1, 0.1]}
    verdict = EXPERIMENT.judge(made_up(**{label(BALANCED, LARGE): kept}))
    assert verdict.why.endswith("Leaving outputs where they are changes its load alone here.")


def test_replicas_that_carry_the_same_refute_it():
    even = {"memory": [5.0, 5.2], "busy": [0.1, 0.1]}
    verdict = EXPERIMENT.judge(made_up(**{label(GATHERED, SMALL): even, label(GATHERED, LARGE): even}))
    assert verdict.holds is False
    assert verdict.why == "the replicas carry the same."


def test_seeds_that_disagree_tell_nothing():
    assert EXPERIMENT.judge(made_up(**{label(GATHERED, SMALL): {"busy": [0.1, 0.4]}})).holds is None


@pytest.mark.parametrize(
    "absent", [label(strategy, outputs) for strategy in (GATHERED, BALANCED) for outputs in OUTPUTS]
)
def test_without_a_row_nothing_can_be_told(absent: str):
    assert EXPERIMENT.judge(made_up(without=absent)).holds is None
    assert EXPERIMENT.judge(made_up(**{absent: {"memory": [], "memory_others": []}})).holds is None


def test_gpus_of_their_own_have_a_peak_and_a_use_each():
    rows = [{"rank": rank, "device": f"cuda:{rank}", "peak_memory_bytes": peak} for rank, peak in enumerate((4e6, 1e6))]
    use = {"gpus": [{"gpu": 0, "mean_percent": 8.0}, {"gpu": 1, "mean_percent": 1.0}]}
    run = Run("words", GATHERED, device="cuda", per_rank=rows, usage=use)
    assert memory(run) == [4.0, 1.0]
    assert busy(run) == [0.08, 0.01]


def test_each_word_is_followed_by_one_of_two():
    inputs, targets = sentences(50)
    assert inputs.shape == targets.shape == (50, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert set((targets - inputs * 5).remainder(8192).flatten().tolist()) == {0, 1}
    assert language_model().model()(inputs[:2]).nbytes == 2 * 512 * 1024  # as its docstring says


def test_outputs_weigh_on_the_first_replica_alone_until_they_stay(tmp_path: Path):
    def few(scale: Scale) -> list[Part]:
        return [
            replace(part, fit={**part.fit, "max_steps": 2}, test_samples=4, train_samples=64)
            for part in EXPERIMENT.parts(scale)
            if LARGE in part.label
        ]

    gathered, balanced = run_parts(replace(EXPERIMENT, parts=few), QUICK, tmp_path, 1, LabProgress(False))
    outputs = 32 * 512 * 1024 / 1e6
    assert gathered.figure("memory") - gathered.figure("memory_others") > 2 * outputs  # and what the loss keeps of them
    assert balanced.figure("memory") - balanced.figure("memory_others") < outputs / 2  # the optimizer's state
    assert 0 < gathered.figure("busy_others") <= 1
    assert 0 < gathered.figure("busy") <= 1
