"""torchrun's processes meet over its store, which still holds what those before them have said."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from manyhands.errors import PeerMissing
from manyhands.world.engines import torchrun_meeting
from manyhands.world.engines.torchrun_meeting import Gathering, Meeting, Member, waited_for


def meet(processes: int) -> list[Gathering]:
    """All processes of a start, as threads."""
    found: dict[int, Gathering] = {}

    def come(index: int) -> None:
        found[index] = Gathering(index, processes)

    threads = [threading.Thread(target=come, args=[index]) for index in range(processes)]
    for thread in reversed(threads):  # the others before rank 0: they find the words of the start before
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[index] for index in range(processes)]


def test_a_second_start_meets_itself_and_not_what_the_first_left_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(torchrun_meeting, "new_store", lambda: store)
    first, second = meet(3), meet(2)
    for met in (first, second):
        assert {tuple(one.members) for one in met} == {tuple(met[0].members)}
        assert met[0].began == min(member.began for member in met[0].members)
    assert {member.nonce for member in first[0].members}.isdisjoint(member.nonce for member in second[0].members)
    first[0].next().say("word", "old")
    meeting = second[0].next()
    with pytest.raises(PeerMissing, match="waited 0 s for rank 0 of torchrun"):
        meeting.heard("word", 0, limit=0.0)
    meeting.say("word", "new")
    assert second[1].next().all_heard("word", [0]) == ["new"]


def test_hosts_of_different_sizes_and_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCAL_WORLD_SIZE of one host said nothing about the others."""
    store = dist.HashStore()
    monkeypatch.setattr(torchrun_meeting, "new_store", lambda: store)
    [met] = meet(1)
    met.processes = 5
    places = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    met.members = [Member(str(number), host, local, 0.0) for number, (host, local) in enumerate(places)]
    assert met.by_host(5) == [[0, 1], [2, 3, 4]]
    assert met.by_host(3) == [[0, 1], [2]]
    assert met.by_host(2) == [[0, 1]]
    assert met.hosts() == ["a", "b"]
    met.members = [Member(str(number), "same", local, 0.0) for number, (_, local) in enumerate(places)]
    assert met.hosts() == ["same#0", "same#1"]
    assert met.host_of(4) == "same#1"


def test_a_store_that_is_gone_is_said_in_one_line() -> None:
    class Gone(dist.Store):
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Broken pipe\nframe #1")

    with pytest.raises(PeerMissing, match=r"torchrun's store, which the ranks meet by, is gone \(Broken pipe\)$"):
        Meeting(0, Gone()).heard("word", 1)
    with pytest.raises(PeerMissing, match="waited 0 s for somebody in vain"):
        waited_for(lambda: False, "somebody", 0.0)
