"""Exceptions carry facts: declared fields that arrive in other processes; nothing is known by the words of a message."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import pytest

from manyhands.errors import BadInput, ManyhandsError, PeerMissing, RankFailed, Refused
from manyhands.record.run import Run
from manyhands.world.launch.processes import launch
from manyhands.world.launch.rank_process import describe

FACTS: dict[str, Any] = {
    "rank": 1,
    "step": 7,
    "phase": "backward",
    "kind": "stalled",
    "traceback": "in a file",
    "detected_seconds": 0.5,
}


@pytest.mark.parametrize("kind", [RankFailed, PeerMissing])
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_failure_arrives_with_all_it_knows(kind: type[RankFailed], pickler: Any) -> None:
    failure = kind("rank 1 is gone", **FACTS)
    failure.run = Run("glyphs", "ddp", {}, ranks=2)
    arrived = pickle.loads(pickler.dumps(failure))
    assert type(arrived) is kind
    assert str(arrived) == "rank 1 is gone"
    assert {name: getattr(arrived, name) for name in FACTS} == FACTS
    assert arrived.run.strategy == "ddp"


@pytest.mark.parametrize("kind", [ManyhandsError, BadInput, Refused])
def test_a_refusal_arrives_with_its_record(kind: type[ManyhandsError]) -> None:
    refusal = kind("ddp cannot")
    assert refusal.run is None
    refusal.run = Run("glyphs", "ddp", {}, status="refused")
    arrived = pickle.loads(pickle.dumps(refusal))
    assert (type(arrived), str(arrived), arrived.run.status) == (kind, "ddp cannot", "refused")


def test_a_failure_comes_from_a_rank_with_its_fields() -> None:
    def body(place: Any) -> None:
        raise RankFailed("the loss is nan", rank=0, step=3, phase="forward", kind="loss")

    with pytest.raises(RankFailed, match=r"^the loss is nan$") as caught:
        launch(body, 1)
    failure = caught.value
    assert (failure.rank, failure.step, failure.phase, failure.kind) == (0, 3, "forward", "loss")
    assert failure.detected_seconds is not None


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (PeerMissing("rank 1 of 2 did not reach its turn"), "consequence"),
        (BrokenPipeError(32, "whatever the system calls it"), "consequence"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3"), "consequence"),
        (RuntimeError("PeerMissing: rank 1 is gone\n\nAt:\n  engine.py(230): look"), "consequence"),
        (RuntimeError('the loss did not reach "extra.weight" with this batch'), "raised"),
        (OSError("urlopen: connection refused"), "raised"),
        (RankFailed("the group is unusable"), "raised"),
    ],
)
def test_only_a_missing_peer_makes_a_failure_a_consequence(problem: Exception, kind: str) -> None:
    assert describe(problem, 0, None).kind == kind
