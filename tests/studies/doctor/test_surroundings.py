"""What the doctor says of other processes, networks, GPUs and launchers."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest
import torch

from manyhands.record.neighbours import Neighbours
from manyhands.studies.doctor import surroundings
from manyhands.studies.doctor.surroundings import Load, check_gpus, check_launcher, check_network


@pytest.mark.parametrize(("share", "status"), [(0.0, "ok"), (0.1, "ok"), (0.5, "warning")])
def test_load_by_others(share: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neighbours, "cores_of_others", lambda _: 2 * share)
    monkeypatch.setattr(Neighbours, "share_taken", lambda _: share)
    check = Load().check()
    assert check.status == status
    assert f"other processes use {2 * share:.1f} cores" in check.message


def test_load_that_cannot_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neighbours, "cores_of_others", lambda _: None)
    assert "not known" in Load().check().message


def test_the_busiest_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([{1: 5.0}, {1: 5.0, 2: 0.01}, {1: 9.0, psutil.Process().pid: 50.0}])
    monkeypatch.setattr(surroundings, "_times", lambda: next(times))
    load = Load()
    assert load._busiest() is None
    assert load._busiest() == f"{psutil.Process(1).name()} (pid 1)"


def test_an_interface_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothere0")
    check = check_network()
    assert (check.status, check.advice) == ("problem", "unset GLOO_SOCKET_IFNAME, or name one of them")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert check_network().name == "network"


def test_a_machine_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> Any:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    check = check_network()
    assert check.status == "warning"
    assert "/etc/hosts" in str(check.advice)


def test_what_torchrun_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in surroundings.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    assert check_launcher() == []
    for name in surroundings.LAUNCHERS:
        monkeypatch.setenv(name, "4")
    assert "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT" in str(check_launcher()[0].advice)


@pytest.mark.parametrize(
    ("driver", "cuda", "hidden", "status", "words"),
    [
        (False, None, None, "ok", "no GPU"),
        (True, None, None, "warning", "built for the CPU alone"),
        (True, "13.0", "", "warning", "hides all GPUs"),
        (True, "13.0", None, "problem", "finds no GPU"),
    ],
)
def test_gpus_that_cannot_be_used(
    driver: bool, cuda: str | None, hidden: str | None, status: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "DRIVER", ("/",) if driver else ())
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    check = check_gpus(2)
    assert (check.status, words in check.message) == (status, True), check


@pytest.mark.parametrize(("ranks", "left", "status"), [(2, 9.0, "ok"), (3, 9.0, "warning"), (2, 3.0, "warning")])
def test_gpus_that_can_be_used(ranks: int, left: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "is_available": True, "device_count": 2, "get_device_name": "H200", "mem_get_info": (left, 10.0),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 3))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    check = check_gpus(ranks)
    assert check.status == status
    assert check.message.startswith("2 GPUs (H200), NCCL 2.28.3")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_of_our_own_is_no_neighbour() -> None:
    """Only its own tree is told apart: the busiest of others is never a child of ours."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        load = Load()
        psutil.Process(child.pid).cpu_times()
        assert f"pid {child.pid}" not in str(load._busiest())
    finally:
        child.kill()
        child.wait()
