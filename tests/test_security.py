"""Nothing read from a file can run code, nothing listens beyond loopback."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import manyhands as mh
from manyhands.record.run_folder import LOCK, held
from manyhands.training.checkpoints.checkpoint import MANIFEST, manifest
from manyhands.training.checkpoints.read import Damaged, load
from manyhands.training.checkpoints.write import write
from tests.breakable import toy
from tests.conftest import fork_servers
from tests.training.checkpoints.test_checkpoint import made

SOURCE = Path(mh.__file__).parent
PICKLE_BETWEEN_PROCESSES = {"world", "data/handover.py"}  # pipes and anonymous files between processes of one program
RUNS_A_SCRIPT = "bridges/scripts/rank.py"  # `manyhands run SCRIPT` is asked to
FORBIDDEN = {
    ("torch", "load"),
    ("torch", "save"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("os", "system"),
    ("os", "popen"),
    ("marshal", "loads"),
    ("shelve", "open"),
    ("joblib", "load"),
}
UNPICKLERS = {"load", "loads", "Unpickler"}


@functools.cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


def calls() -> Iterator[tuple[Path, ast.Call, str, str]]:
    """Every call in the source as (file, node, module or variable, name)."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in nodes(file):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute):
                    owner = node.func.value.id if isinstance(node.func.value, ast.Name) else "an expression"
                    yield file, node, owner, node.func.attr
                elif isinstance(node.func, ast.Name):
                    yield file, node, "", node.func.id


def place(file: Path, node: ast.Call) -> str:
    return f"{file.relative_to(SOURCE)}:{node.lineno}"


def test_no_call_that_could_run_what_a_file_says() -> None:
    found = [
        place(file, node)
        for file, node, owner, name in calls()
        if (owner, name) in FORBIDDEN or (not owner and name in ("eval", "exec", "__import__"))
    ]
    assert [at for at in found if not at.startswith(RUNS_A_SCRIPT)] == []
    assert len(found) <= 1


def test_pickle_only_between_processes_of_one_program() -> None:
    found = [
        place(file, node)
        for file, node, owner, name in calls()
        if owner in ("pickle", "cloudpickle", "dill")
        and name in UNPICKLERS
        and not {file.relative_to(SOURCE).parts[0], str(file.relative_to(SOURCE))} & PICKLE_BETWEEN_PROCESSES
    ]
    assert found == []
    names = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in sorted(SOURCE.rglob("*.py"))
        for node in nodes(file)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("pickle", "cloudpickle", "dill")
    ]
    assert names == [], "import the module, so that its calls can be found"


def test_numpy_files_are_read_without_pickle() -> None:
    allowed = [
        place(file, node)
        for file, node, _, _ in calls()
        if any(word.arg == "allow_pickle" and getattr(word.value, "value", None) is not False for word in node.keywords)
    ]
    assert allowed == [], "numpy refuses pickles unless told otherwise"


def test_no_shell() -> None:
    found = [
        place(file, node)
        for file, node, _, _ in calls()
        if any(word.arg == "shell" and getattr(word.value, "value", None) is not False for word in node.keywords)
    ]
    assert found == []


def test_the_search_finds_what_it_looks_for() -> None:
    """A search that finds nothing anywhere would prove nothing."""
    unpickled = {
        place(file, node).split(":")[0] for file, node, owner, name in calls() if (owner, name) == ("pickle", "loads")
    }
    assert {"world/launch/messages.py", "world/launch/by_value.py"} <= unpickled


def test_names_in_a_manifest_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = write(tmp_path, made())
    (tmp_path / "secret").write_text("{}")
    files = json.loads((path / MANIFEST).read_text())["files"]
    files["../secret"] = files.pop("state.json")
    (path / MANIFEST).write_bytes(manifest(files))
    with pytest.raises(Damaged, match=r"its manifest.json is damaged"):
        load(path)


@contextmanager
def observed(look: Callable[[psutil.Process], None]) -> Iterator[None]:
    """Look at the caller, the fork server, the keeper and the ranks, many times while something runs."""
    over = threading.Event()

    def observe() -> None:
        while not over.is_set():
            with contextlib.suppress(psutil.Error):
                processes = [
                    psutil.Process()
                ]  # and no browser or tracker's service that other tests have left beside us
                for server in fork_servers():
                    processes += [server, *server.children(recursive=True)]
            for process in processes:
                with contextlib.suppress(psutil.Error, OSError):
                    look(process)
            time.sleep(0.01)

    watcher = threading.Thread(target=observe)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def test_ranks_that_talk_through_gloo_listen_on_loopback_alone() -> None:
    before, seen = _listening(psutil.Process()), set[str]()
    with observed(lambda process: seen.update(_listening(process))):
        mh.fit(toy(epochs=20), "ddp:transport=gloo", ranks=2, threads=1, progress=False)
    assert seen - before <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert seen - before, "the look found the sockets of the run"


@pytest.mark.parametrize(
    "strategy",
    ["ddp", *(pytest.param(name, marks=pytest.mark.soak) for name in ("pipeline", "parameter_server", "fsdp"))],
)
def test_no_other_user_of_the_machine_can_reach_a_run(strategy: str, tmp_path: Path) -> None:
    """Every user could connect to the ranks' store on loopback, say where their shared memory lies, and so run code.

    In shared memory nothing listens on a port or under a name, and no file is open that others may write.
    """
    before = _listening(psutil.Process())
    ports, names, writable = set[str](), set[str](), set[str]()

    def look(process: psutil.Process) -> None:
        ports.update(_listening(process) - before)
        names.update(str(one.laddr) for one in process.net_connections("unix") if one.laddr)
        for entry in process.open_files():
            if Path(entry.path).exists() and Path(entry.path).stat().st_mode & stat.S_IWOTH:
                writable.add(entry.path)

    names_before = {str(one.laddr) for one in psutil.Process().net_connections("unix") if one.laddr}
    with observed(look):
        run = mh.fit(
            toy(epochs=10), strategy, ranks=2, threads=1, progress=False, run_dir=tmp_path, checkpoint_every=10
        )
    assert run.status == "done"
    assert (ports, names - names_before, writable) == (set(), set(), set())


def test_who_may_only_read_a_run_folder_cannot_hold_it(tmp_path: Path) -> None:
    """A lock can be taken by whoever can open the file."""
    with held(tmp_path):
        assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o600


def _listening(process: psutil.Process) -> set[str]:
    found = process.net_connections("inet")
    return {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}
