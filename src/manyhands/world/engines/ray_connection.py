"""The connection of this process to a Ray cluster: found, tried before Ray tries it for minutes, and kept quiet."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...errors import BadInput

CLIENT = "ray://"
NAME_ONE = "--on ray:address=HOST:6379, or ray:address=ray://HOST:10001 from outside the cluster"
ANSWER_SECONDS = 5.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    [0, 0, 0, 4, 0, 0, 0, 0, 0]
)  # what every gRPC client begins with
SETTINGS = 4  # the kind of frame that every gRPC server answers with, at this place:
KIND_OF_FRAME = 3

_lock = threading.Lock()
_users = 0  # engines that are open; the last one hangs up,
_ours = False  # unless somebody else was connected before us


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected while the block runs; a connection that is there already is used, and left alone."""
    global _users, _ours
    ray = _import()
    with _lock:
        if not _users and not ray.is_initialized():
            _connect(ray, address)
            _ours = True
        elif ray.is_initialized():
            _check_same(ray, address)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and _ours:
                _ours = False
                ray.shutdown()
                _silence(ray, False)


def _import() -> Any:
    try:
        import ray
    except ImportError:
        raise BadInput("ray is not installed here; use pip install 'manyhands[ray]'") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    found = _found(address)
    _try(found)
    kept = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings(action="ignore"):
            ray.init(address=found, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as problem:
        ports = "HOST:6379 is the cluster's own port, ray://HOST:10001 the one for clients"
        raise BadInput(f"ray refused the connection to {found} ({_first_line(problem)}); {ports}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, kept)
    _silence(ray, True)


def _found(address: str) -> str:
    """Where `auto` is. Ray's own way to look is not public; without it, Ray looks by itself when it connects."""
    if address != "auto":
        return address
    if given := os.environ.get("RAY_ADDRESS"):
        return given
    try:
        from ray._private.services import canonicalize_bootstrap_address as look
    except ImportError:
        return address
    try:
        return look(address) or address
    except ConnectionError:
        raise BadInput(f"no Ray cluster runs here; use ray start --head, or {NAME_ONE}") from None


def _try(address: str) -> None:
    """Whether somebody listens there who speaks gRPC: Ray itself would try for more than a minute."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix(CLIENT).rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise BadInput(f'"{address}" is not the address of a Ray cluster; use {NAME_ONE}')
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as line:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            line.settimeout(ANSWER_SECONDS)
            line.sendall(GREETING)
            answer = line.recv(64)
    except (OSError, OverflowError) as problem:
        why = "no answer" if isinstance(problem, TimeoutError) else getattr(problem, "strerror", None) or problem
        raise BadInput(f"no Ray cluster answers at {address} ({why}); use {NAME_ONE}") from None
    if len(answer) <= KIND_OF_FRAME or answer[KIND_OF_FRAME] != SETTINGS:
        raise BadInput(f"what listens at {address} is not a Ray cluster; use {NAME_ONE}")


def _check_same(ray: Any, address: str) -> None:
    """A process has one connection; where it has one already, another cluster cannot be meant."""
    if address == "auto" or address.startswith(CLIENT):
        return
    try:
        there = str(ray.get_runtime_context().gcs_address)
        host, port = socket.gethostbyname(address.rpartition(":")[0]), address.rpartition(":")[2]
    except Exception:  # one through ray:// does not know the cluster's own address
        return
    if f"{host}:{port}" != there and not (host.startswith("127.") and there.endswith(f":{port}")):
        raise BadInput(
            f"this process is connected to the Ray cluster at {there} already (found address={address}); "
            "leave out the address, or call ray.shutdown() first"
        )


def _silence(ray: Any, silent: bool) -> None:
    """Ray prints what happens to its nodes on standard output, where a JSON document may be expected. It has no public
    way to stop that; where the name is gone, it prints."""
    with suppress(AttributeError):
        if hasattr(ray._private.worker, "_worker_logs_enabled"):
            ray._private.worker._worker_logs_enabled = not silent


def _first_line(problem: Exception) -> str:
    return next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
