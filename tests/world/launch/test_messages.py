"""Between ranks and their caller: whole messages, and a caller that no rank can block."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from manyhands.errors import RankFailed
from manyhands.world.health.heartbeats import PHASE, PHASE_NUMBERS, SINCE, STEP
from manyhands.world.health.stalls import AWAY_SECONDS, StallFinder
from manyhands.world.launch.messages import ToCaller, ToRank
from manyhands.world.launch.processes import LaunchedProcess, launch


def pair() -> tuple[ToRank, ToCaller, socket.socket]:
    mine, theirs = socket.socketpair()
    return ToRank(mine), ToCaller(os.dup(theirs.fileno())), theirs


def all_of(line: ToRank, count: int) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found += line.receive()
    return found


def test_messages_arrive_whole_and_in_order() -> None:
    line, link, theirs = pair()
    sent = [("small", 1), ("large", b"x" * 3_000_000), ("empty", None)]
    teller = threading.Thread(target=lambda: [link.tell(*message) for message in sent])
    teller.start()
    assert all_of(line, 3) == sent
    teller.join()
    link.close()
    theirs.close()
    with pytest.raises(EOFError):
        all_of(line, 1)
    line.close()


def test_half_a_message_keeps_nobody_waiting() -> None:
    """A rank stopped in the middle of a message once kept its caller from watching the others."""
    line, link, theirs = pair()
    theirs.sendall((100).to_bytes(8, "little") + b"half")
    assert line.receive() == []  # pytest's own limit ends a test that waits
    assert line.receive() == []
    for end in (line, link, theirs):
        end.close()


def test_an_answer_nobody_reads_keeps_nobody_waiting() -> None:
    line, link, theirs = pair()
    answers: list[object] = []
    asker = threading.Thread(target=lambda: answers.append(link.ask("question", None)))
    asker.start()
    assert all_of(line, 1) == [("ask", ("question", None))]
    line.send(b"y" * 5_000_000)  # more than a socket holds
    until = time.monotonic() + 60
    while line.has_unsent and time.monotonic() < until:
        line.flush()
    asker.join(60)
    assert answers == [b"y" * 5_000_000]
    line.send(b"z" * 5_000_000)
    assert line.has_unsent
    theirs.close()
    link.close()
    line.flush()
    assert not line.has_unsent, "what was for one who is gone is dropped"
    line.close()


@pytest.mark.usefixtures("nothing_left")
def test_a_rank_stopped_while_it_speaks_is_named() -> None:
    def body(process: LaunchedProcess) -> None:
        row = process.board.row(process.index)
        row[STEP], row[PHASE], row[SINCE] = 3, PHASE_NUMBERS["other"], time.monotonic_ns()
        if process.index == 0:
            socket.socket(fileno=os.dup(process.caller.fileno())).sendall(
                (10_000_000).to_bytes(8, "little") + b"only the beginning"
            )
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)

    with pytest.raises(RankFailed, match=r"rank 0 has been in other of step 3 for \d+ s \(its process is stopped\)"):
        launch(body, 2, watch=StallFinder(AWAY_SECONDS + 0.5), time_limit=60)
