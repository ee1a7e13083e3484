"""What can go wrong with a machine: each gives one clear line and loses nothing."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import manyhands as mh
from manyhands.errors import BadInput, RankFailed
from manyhands.record.run import weights_digest
from manyhands.record.run_folder import held
from manyhands.strategies import make_strategy
from manyhands.studies.faults import Fault
from manyhands.training.checkpoints.read import latest
from manyhands.training.run_fit import run_fit
from manyhands.training.settings import FitSettings
from tests.breakable import toy
from tests.conftest import ROOT, fork_servers

fit = partial(mh.fit, progress=False, threads=1)


def test_a_full_disk_while_training_loses_nothing(tmp_path: Path) -> None:
    """From step 6 on no file of the writing rank grows; the run ends with its weights, the checkpoint before is whole."""
    fault = Fault("disk-full", rank=0, step=6, folder=str(tmp_path / "checkpoints"), newest=4, caller=os.getpid())
    settings = FitSettings.of(run_dir=tmp_path, checkpoint_every=4, threads=1, progress=False, fault=fault)
    run = run_fit(toy(), make_strategy("single"), settings)
    assert run.weights_sha256 == fit(toy()).weights_sha256
    assert [entry["step"] for entry in run.faults] == [8, 12, 16]
    assert run.faults[0]["message"].startswith("the checkpoint after step 8 was not written: the disk of")
    assert "is full" in run.faults[0]["message"]
    found, reasons = latest(tmp_path / "checkpoints")
    assert found is not None
    assert found.step == 4
    assert reasons == []


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """What a full disk does, to this process alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(
    ("keywords", "left"),
    [
        ({"checkpoint_every": 4}, "the checkpoint after step 16 is whole: make room and use --resume"),
        ({}, "no checkpoint holds its weights (in Python, the error's `run` does): make room and train again"),
    ],
)
def test_a_full_disk_at_the_end_says_what_is_left(keywords: Any, left: str, tmp_path: Path) -> None:
    """It promised whole checkpoints where none were asked for, and left .part files; those of another run do not count."""
    before = fit(toy(seed=3), run_dir=tmp_path, **keywords)
    save = mh.Run.save

    def save_on_full_disk(run: mh.Run, folder: Any) -> Path:
        with no_file_grows_beyond(2000):
            return save(run, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mh.Run, "save", save_on_full_disk)
        with pytest.raises(
            RankFailed, match=r"is done but its folder .* could not be written \(File too large"
        ) as failure:
            fit(toy(), run_dir=tmp_path, **keywords)
    assert left in str(failure.value)
    assert failure.value.run.weights_sha256 == fit(toy()).weights_sha256  # type: ignore[attr-defined]
    assert not list(tmp_path.glob("*.part"))
    found = mh.Run.load(tmp_path)
    assert found.weights_sha256 == before.weights_sha256, "the run before is still there, whole"
    assert found.weights is not None
    assert weights_digest(found.weights) == before.weights_sha256


def test_what_a_killed_process_left_half_written_goes_at_the_next_start(tmp_path: Path) -> None:
    fit(toy(), run_dir=tmp_path, checkpoint_every=8)
    for name in ("run.json", "weights.safetensors", "timeline.json", "live.json"):
        (tmp_path / f"{name}.part").write_text("half")
    newest = tmp_path / "checkpoints" / "step-00000016"
    newest.rename(newest.with_name(".step-00000016.old"))  # killed while it was being replaced
    run = fit(toy(), run_dir=tmp_path, resume=True)
    assert run.resumed_from is not None
    assert run.resumed_from["step"] == 16
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".part", ".old")]


def test_weights_of_another_run_are_not_evaluated(tmp_path: Path, command: Any) -> None:
    for name, seed in (("one", 1), ("other", 2)):
        fit(toy(seed=seed), run_dir=tmp_path / name)
    shutil.copy(tmp_path / "one" / "weights.safetensors", tmp_path / "other")
    code, _, err = command("evaluate", str(tmp_path / "other"))
    assert (code, err.count("\n")) == (2, 1)
    assert "are not those of its record (another SHA-256)" in err


def test_a_run_folder_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        BadInput, match=r"the run folder .*file/run cannot be written \(Not a directory\); use another --run-dir"
    ):
        fit(toy(), run_dir=tmp_path / "file" / "run")
    if os.path.ismount("/proc"):
        with pytest.raises(BadInput, match=r"the run folder /proc/manyhands cannot be written"):
            fit(toy(), run_dir="/proc/manyhands")


def test_a_read_only_run_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):  # root may write everywhere but on a disk that is mounted to be read alone
        said = on_a_disk_for_reading(folder)
        assert said == f"the run folder {folder} cannot be written (Read-only file system); use another --run-dir"
        return
    with pytest.raises(BadInput, match=r"cannot be written \(Permission denied\)"):
        fit(toy(), run_dir=folder)


def on_a_disk_for_reading(folder: Path) -> str:
    code = f"from manyhands.record.run_folder import held\ntry:\n with held({str(folder)!r}): pass\nexcept Exception as problem: print(problem)"
    command = f'mount -t tmpfs -o ro none {folder} && exec {sys.executable} -c "$0"'
    if shutil.which("unshare") is None:
        pytest.skip("mounting needs unshare")
    done = subprocess.run(["unshare", "-m", "sh", "-c", command, code], capture_output=True, text=True, timeout=110)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("mounting is not allowed here")
    return done.stdout.strip()


def test_a_run_folder_in_use_is_bad_input_and_free_afterwards(tmp_path: Path) -> None:
    code = f"import time; from manyhands.record.run_folder import held\nwith held({str(tmp_path)!r}): print('held', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BadInput, match=rf"is in use by another run \(process {other.pid}\); wait for it"):
            fit(toy(), run_dir=tmp_path)
    finally:
        other.kill()
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    with held(tmp_path):  # a killed run holds nothing
        pass
    assert not list(tmp_path.glob(".running"))


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() - 3600.0 * next(calls))
    run = fit(toy(), "ddp", ranks=2, run_dir=tmp_path, checkpoint_every="0.05s", stall_seconds=5)
    assert run.status == "done"
    assert run.seconds is not None
    assert 0 < run.seconds < 60
    assert run.startup_seconds is not None
    assert run.startup_seconds >= 0


def test_the_usual_ports_may_be_taken() -> None:
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        except OSError:
            pass  # taken already: as good
        assert fit(toy(epochs=1), "ddp", ranks=2).status == "done"


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """For this process and the fork server, whose limit the ranks inherit."""
    limited = [psutil.Process(), *fork_servers()]
    assert len(limited) == 2
    before = [process.rlimit(psutil.RLIMIT_NOFILE) for process in limited]
    for process, (_, hard) in zip(limited, before, strict=True):
        process.rlimit(psutil.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        for process, limits in zip(limited, before, strict=True):
            process.rlimit(psutil.RLIMIT_NOFILE, limits)


def test_256_file_descriptors_are_enough_or_it_is_said(tmp_path: Path) -> None:
    """Many fits one after the other leak none; far too many ranks are refused with one line."""
    fit(toy(epochs=1))  # the server is there
    with few_descriptors(256):
        for strategy in ("ddp", "hogwild"):
            assert fit(toy(), strategy, ranks=2, run_dir=tmp_path, checkpoint_every=2).status == "done"
        gc.collect()  # what other tests have left is not closed in between
        before = len(os.listdir("/dev/fd"))
        for _ in range(3):
            fit(toy(epochs=1))
        assert len(os.listdir("/dev/fd")) <= before, "descriptors leak"
        with pytest.raises(mh.ManyhandsError, match=r"^.* file descriptors .*$"):
            fit(toy(samples=4000), "ddp", ranks=200)


def test_nothing_of_a_run_is_in_dev_shm(tmp_path: Path) -> None:
    """However small it is, as in containers. Seen from a callback, ranks may have ended: they look themselves."""

    def look(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if "RANK" in os.environ:  # the caller tries it too
            (tmp_path / os.environ["RANK"]).write_text(Path("/proc/self/maps").read_text())
        return torch.nn.functional.cross_entropy(output, target)

    for strategy in ("ddp", "hogwild"):
        assert fit(toy(loss=look), strategy, ranks=2, max_steps=3).status == "done"
        looked = list(tmp_path.glob("[01]"))
        assert len(looked) == 2 or strategy == "hogwild", "under hogwild one rank may have made all shares"
        for file in looked:
            seen = file.read_text()
            file.unlink()
            assert "memfd:" in seen, "what ranks share"
            assert "/dev/shm" not in seen
        assert looked


@pytest.mark.soak  # why it is no matter: above
@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root to mount a small /dev/shm")
def test_a_small_dev_shm_is_no_matter(tmp_path: Path) -> None:
    """Shared weights of 4 MB where /dev/shm holds 1 MB."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys
        sys.path[:0] = [{str(ROOT)!r}]
        import torch, manyhands as mh
        from tests.breakable import toy
        assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize <= 1 << 20
        def wide():
            return torch.nn.Sequential(torch.nn.Linear(12, 4096), torch.nn.Linear(4096, 256), torch.nn.Linear(256, 2))
        for strategy in ("ddp", "hogwild"):
            run = mh.fit(toy(model=wide, test=None), strategy, ranks=2, threads=1, progress=False, max_steps=3)
            assert run.status == "done"
        print("done")
        """)
    )
    command = f"mount -t tmpfs -o size=1m none /dev/shm && exec {sys.executable} {script}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, timeout=110)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.stdout.strip() == "done", done.stderr[-2000:]
