"""Readers against files made here, good and bad; downloads from a server on this machine that fails on demand."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import struct
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from manyhands.data import download, files
from manyhands.data.download import DownloadFailed, Remote, fetch
from manyhands.errors import BadInput

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, no data folder, and no proxy between us and 127.0.0.1."""
    for name in ("MANYHANDS_DATA", "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "manyhands"


# --- download --------------------------------------------------------------------------------------------------------


class Server:
    """Serves `content`; each request is answered through the next of `faults` (bytes -> blocks) while there are any."""

    def __init__(self) -> None:
        self.content, self.ranges, self.sends_length, self.status = CONTENT, True, True, 200
        self.faults: list = []
        self.asked: list[str | None] = []
        self.stopping = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/file"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if self.status != 200 or start >= len(self.content):
            handler.send_response(self.status if self.status != 200 else 416)
            handler.end_headers()
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        body = self.content[start:]
        if self.sends_length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        fault = self.faults.pop(0) if self.faults else None
        for block in fault(body) if fault else [body]:
            handler.wfile.write(block)
            handler.wfile.flush()

    def close(self) -> None:
        self.stopping.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def remote(*servers: Server, content: bytes = CONTENT) -> Remote:
    return Remote(tuple(s.url for s in servers), ((len(content), hashlib.sha256(content).hexdigest()),))


def ends_after(count: int):
    return lambda body: [body[:count]]


def flips_a_bit(body: bytes) -> list[bytes]:
    return [bytes([body[0] ^ 1]), body[1:]]


def test_fetch(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    fetch(remote(server), target)
    assert target.read_bytes() == CONTENT
    assert os.listdir(target.parent) == ["file"], "something is left beside the file"
    fetch(remote(server), target)
    assert len(server.asked) == 1, "a file that is there was fetched again"


def test_a_truncated_answer_is_continued(server: Server, tmp_path: Path) -> None:
    server.faults = [ends_after(100_000), ends_after(50_000)]
    fetch(remote(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_what_an_earlier_process_left_is_continued(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:123_456])
    fetch(remote(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=123456-"]


def test_a_whole_part_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    fetch(remote(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-"]


@pytest.mark.parametrize("left", [b"of another file", b"x" * 300_000, b"x" * 400_000], ids=len)
def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "file.part").write_bytes(left)
    fetch(remote(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked[-1] is None


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.faults = [ends_after(100_000)]
    fetch(remote(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_server_that_gives_no_length(server: Server, tmp_path: Path) -> None:
    server.sends_length = False
    server.faults = [ends_after(100_000)]
    fetch(remote(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_slow_answer_is_waited_for(server: Server, tmp_path: Path) -> None:
    def slow(body: bytes) -> Iterator[bytes]:
        for start in range(0, len(body), 25_000):
            time.sleep(0.2)
            yield body[start : start + 25_000]

    server.faults = [slow]
    began = time.monotonic()
    fetch(remote(server), tmp_path / "file", timeout=2.0)
    assert time.monotonic() - began > 2.0, "in all it takes longer than one word may"
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None]


def test_a_silent_answer_is_cut_and_continued(server: Server, tmp_path: Path) -> None:
    def falls_silent(body: bytes) -> Iterator[bytes]:
        yield body[:200_000]
        server.stopping.wait(100)

    server.faults = [falls_silent]
    began = time.monotonic()
    fetch(remote(server), tmp_path / "file", timeout=2.0)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=200000-"]
    assert time.monotonic() - began < 60  # of the 100 s of silence


def test_silence_ends(server: Server, tmp_path: Path) -> None:
    server.faults = [lambda body: server.stopping.wait(10) or []] * 9
    with pytest.raises(DownloadFailed, match=r"127.0.0.1: no answer in time \(3 tries\)"):
        fetch(remote(server), tmp_path / "file", timeout=0.1)
    until = time.monotonic() + 30  # the server may hear of it after the client has given up
    while len(server.asked) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(server.asked) == 3


def test_a_connection_that_always_breaks_ends(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.faults = [ends_after(10)] * 99
    with pytest.raises(DownloadFailed, match=r"the connection ended 299,990 bytes early \(3 tries\)"):
        fetch(remote(server), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_corrupted_file_is_refused(server: Server, tmp_path: Path) -> None:
    server.faults = [flips_a_bit]
    wrong = hashlib.sha256(bytes([CONTENT[0] ^ 1]) + CONTENT[1:]).hexdigest()
    right = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(
        DownloadFailed, match=f"expected 300,000 bytes with SHA-256 {right}, found 300,000 bytes with {wrong}"
    ):
        fetch(remote(server), tmp_path / "file")
    assert os.listdir(tmp_path) == ["file.lock"], "the wrong file was kept"
    fetch(remote(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_another_address_is_tried(server: Server, tmp_path: Path) -> None:
    other = Server()
    try:
        other.status = 404
        fetch(remote(other, server), tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == CONTENT
        server.status = 503
        with pytest.raises(
            DownloadFailed, match=r"127.0.0.1: HTTP 404 Not Found; 127.0.0.1: HTTP 503 Service Unavailable"
        ):
            fetch(remote(other, server), tmp_path / "again")
    finally:
        other.close()


def test_a_page_instead_of_the_file(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>please log in</html>"
    with pytest.raises(DownloadFailed, match="the server offers 26 bytes, expected 300,000"):
        fetch(remote(server), tmp_path / "file")


def test_more_than_expected_is_not_kept(server: Server, tmp_path: Path) -> None:
    server.content, server.sends_length = CONTENT * 3, False
    with pytest.raises(DownloadFailed, match="sends more than the 300,000 bytes expected"):
        fetch(remote(server), tmp_path / "file")


def test_either_form_of_a_file(server: Server, tmp_path: Path) -> None:
    both = tuple((len(c), hashlib.sha256(c).hexdigest()) for c in (CONTENT, CONTENT[:1000]))
    for content in (CONTENT, CONTENT[:1000]):
        server.content = content
        server.faults = [ends_after(700)]
        fetch(Remote((server.url,), both), tmp_path / str(len(content)))
        assert (tmp_path / str(len(content))).read_bytes() == content


def test_processes_take_turns(server: Server, tmp_path: Path) -> None:
    def slow(body: bytes) -> Iterator[bytes]:
        time.sleep(0.3)
        yield body

    server.faults = [slow] * 9
    threads = [threading.Thread(target=fetch, args=(remote(server), tmp_path / "file")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_waiting_for_another_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PATIENCE", 0.2)
    with download._alone(tmp_path / "file"), pytest.raises(DownloadFailed, match="waited 0 s for another process"):
        fetch(Remote((), ((1, ""),)), tmp_path / "file")


def test_one_line_where_there_is_no_terminal(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    fetch(remote(server), tmp_path / "file")
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == f"downloading file (300,000 bytes) from {server.url}\n"
    fetch(remote(server), tmp_path / "quiet", progress=False)
    assert capfd.readouterr().err == ""


def test_a_bar_on_a_terminal(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    fetch(remote(server), tmp_path / "file")
    said = capfd.readouterr()
    assert said.out == ""
    assert "downloading file" in said.err
    assert "300.0/300.0 kB" in said.err


# --- finding ---------------------------------------------------------------------------------------------------------


def test_data_folder_then_cache_then_download(server: Server, cache: Path, tmp_path: Path, monkeypatch) -> None:
    fetched = files.find("thing", "things/a", remote=remote(server))
    assert fetched == cache / "things" / "a"
    assert files.find("thing", "things/b", "things/a") == cache / "things" / "a"
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path / "mine"))
    (tmp_path / "mine" / "things").mkdir(parents=True)
    assert files.find("thing", "things/a") == cache / "things" / "a"
    (tmp_path / "mine" / "things" / "a").write_bytes(b"")
    assert files.find("thing", "things/a") == tmp_path / "mine" / "things" / "a"
    assert len(server.asked) == 1


def test_offline(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MNIST_HOMES", ("http://127.0.0.1:9/mnist/",))  # nobody listens on the discard port
    with pytest.raises(files.DataNotFound) as caught:
        files.mnist()
    assert isinstance(caught.value, BadInput)
    assert str(caught.value) == (
        f"mnist: mnist/train-images-idx3-ubyte.gz not found in MANYHANDS_DATA (unset) nor in {cache}; "
        f"download failed: 127.0.0.1: [Errno {errno.ECONNREFUSED}] Connection refused; "
        f"put what there is of mnist into {cache}/mnist or set MANYHANDS_DATA"
    )
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path))
    with pytest.raises(files.DataNotFound, match=rf"MANYHANDS_DATA \({tmp_path}\)"):
        files.mnist()
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(files.DataNotFound, match=r"nowhere, no such folder\)"):
        files.mnist()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(files.DataNotFound, match=r"download failed: .*Not a directory"):
        files.text("tinyshakespeare.txt")


def test_text(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.content = "na\u00efve \u2013 caf\u00e9\n".encode("cp1252")
    for name in files.TEXTS:
        monkeypatch.setitem(files.TEXTS, name, remote(server, content=server.content))
    assert files.text("rt_polarity_pos.txt") == "na\u00efve \u2013 caf\u00e9\n"
    assert (cache / "text" / "rt_polarity_pos.txt").exists()
    (cache / "text" / "tinyshakespeare.txt").write_text("na\u00efve \u2013 caf\u00e9\n", "utf-8")
    assert files.text("tinyshakespeare.txt") == "na\u00efve \u2013 caf\u00e9\n"
    with pytest.raises(
        files.DataNotFound, match=r'no text named "shakespeare.txt"; did you mean "tinyshakespeare.txt"\?'
    ):
        files.text("shakespeare.txt")
    (cache / "text" / "rt_polarity_neg.txt").write_bytes(b"abc\xff\x81\n")
    with pytest.raises(BadInput, match=r"rt_polarity_neg.txt: expected text, found byte 0x81 at 4"):
        files.text("rt_polarity_neg.txt")


# --- idx -------------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_read_idx(pack, tmp_path: Path) -> None:
    for code, kind in files.IDX_TYPES.items():
        array = np.arange(-12, 12).reshape(2, 3, 4).astype(kind)
        (tmp_path / "a").write_bytes(pack(idx(array, code)))
        found = files.read_idx(tmp_path / "a")
        np.testing.assert_array_equal(found, array)
        assert found.dtype.isnative
        assert found.flags.writeable  # torch warns about arrays that are not


GOOD = idx(np.zeros((5, 4), np.uint8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[:-1], r"expected 20 bytes of values for shape \(5, 4\), found 19"),
        (GOOD + b"x", r"expected 20 bytes of values for shape \(5, 4\), found more"),
        (GOOD[:7], r"the idx header ends early \(expected 2 dimensions\)"),
        (b"", "not an idx file: expected it to begin with 00 00 08, found nothing"),
        (b"\x89PNG....", "expected it to begin with 00 00 08, found 89 50 4e 47"),
        (b"\0\0\x07\x01", "expected it to begin with 00 00 08, found 00 00 07 01"),
        (gzip.compress(GOOD[:-1]), r"expected 20 bytes of values for shape \(5, 4\), found 19"),
        (gzip.compress(GOOD)[:-12], r"the gzip data ends early \(\d+ bytes in the file\)"),
        (gzip.compress(GOOD)[:-8] + bytes(8), r"damaged gzip data \(CRC check failed"),
        (gzip.compress(b"PK\x03\x04...."), "found 50 4b 03 04"),
    ],
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else "",
)
def test_bad_idx(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad-file").write_bytes(content)
    with pytest.raises(BadInput, match=f"bad-file: .*{message}"):
        files.read_idx(tmp_path / "bad-file")


@pytest.mark.parametrize(("folder", "pack", "end"), [("mnist", gzip.compress, ".gz"), ("MNIST/raw", bytes, "")])
def test_mnist(folder: str, pack, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path))
    (tmp_path / folder).mkdir(parents=True)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[3, 4, 5] = 200
        (tmp_path / folder / f"{part}-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
        labels = (np.arange(count) % 10).astype(np.uint8)
        (tmp_path / folder / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))
    for (found, classes), count in zip(files.mnist(), (60_000, 10_000), strict=True):
        assert found.shape == (count, 1, 28, 28)
        assert found.dtype == torch.uint8
        assert found[3, 0, 4, 5] == 200
        assert classes.dtype == torch.int64
        assert classes[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    (tmp_path / folder / f"t10k-labels-idx1-ubyte{end}").write_bytes(pack(idx(np.full(10_000, 11, np.uint8))))
    with pytest.raises(BadInput, match=r"t10k-labels-idx1-ubyte.*: expected labels from 0 to 9, found 11"):
        files.mnist()
    (tmp_path / folder / f"train-labels-idx1-ubyte{end}").write_bytes(pack(idx(np.zeros(7, np.uint8))))
    with pytest.raises(BadInput, match=r"train-labels.*: expected uint8 \(60000,\), found uint8 \(7,\)"):
        files.mnist()


# --- CIFAR-10 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_cifar10(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Files of 2 x 2 images; records (6 files, 4 images, label and pixels)."""
    monkeypatch.setattr(files, "CIFAR10_SIDE", 2)
    records = np.random.default_rng(1).integers(0, 256, (6, 4, 3073)).astype(np.uint8)
    records[:, :, 0] %= 10
    return records


def assert_is(found: tuple, records: np.ndarray) -> None:
    (train_images, train_labels), (test_images, test_labels) = found
    assert train_images.dtype == test_images.dtype == torch.uint8
    assert train_labels.dtype == test_labels.dtype == torch.int64
    images, labels = torch.cat([train_images, test_images]), torch.cat([train_labels, test_labels])
    assert images.shape == (24, 3, 32, 32)
    np.testing.assert_array_equal(images.numpy(), records[:, :, 1:].reshape(24, 3, 32, 32))
    np.testing.assert_array_equal(labels.numpy(), records[:, :, 0].reshape(24))
    assert len(test_images) == 4


def archive(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, goal in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, goal
            tar.addfile(member)
    return out.getvalue()


def batches(records: np.ndarray) -> dict[str, bytes]:
    names = [f"cifar-10-batches-bin/{name}.bin" for name in files.CIFAR10_BATCHES]
    return dict(zip(names, (part.tobytes() for part in records), strict=True))


@pytest.mark.parametrize("above", ["", "cifar10/"])
def test_cifar10_binary(above: str, tiny_cifar10: np.ndarray, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path))
    folder = tmp_path / above / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, content in batches(tiny_cifar10).items():
        (tmp_path / above / name).write_bytes(content)
    assert_is(files.cifar10(), tiny_cifar10)
    assert_is(files.read_cifar10(folder), tiny_cifar10)
    with (folder / "data_batch_3.bin").open("ab") as file:
        file.write(b"!")
    with pytest.raises(BadInput, match=r"data_batch_3.bin: expected 12,292 bytes \(4 images\), found 12,293"):
        files.cifar10()
    (folder / "data_batch_3.bin").write_bytes(b"\x0b" * 12_292)
    with pytest.raises(BadInput, match=r"data_batch_3.bin: expected labels from 0 to 9, found 11"):
        files.cifar10()
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(BadInput, match=r"data_batch_2.bin: missing; CIFAR-10 is the six files data_batch_1.bin, "):
        files.cifar10()


def test_cifar10_download(server: Server, tiny_cifar10: np.ndarray, cache: Path, monkeypatch) -> None:
    server.content = archive({"cifar-10-batches-bin/readme.html": b"<html>", **batches(tiny_cifar10)})
    server.faults = [ends_after(1000)]
    monkeypatch.setattr(files, "CIFAR10", remote(server, content=server.content))
    assert_is(files.cifar10(), tiny_cifar10)
    assert os.listdir(cache / "cifar10") == ["cifar-10-batches-bin"]
    assert sorted(os.listdir(cache / "cifar10" / "cifar-10-batches-bin")) == [f"{n}.bin" for n in files.CIFAR10_BATCHES]
    assert_is(files.cifar10(), tiny_cifar10)
    assert len(server.asked) == 2


def test_own_archive_is_left_alone(tiny_cifar10: np.ndarray, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive(batches(tiny_cifar10)))
    assert_is(files.cifar10(), tiny_cifar10)
    assert (tmp_path / "cifar-10-binary.tar.gz").exists()


@pytest.mark.parametrize(
    ("members", "links"),
    [
        ({"../escaped": b"!"}, {}),
        ({"cifar-10-batches-bin/../../escaped": b"!"}, {}),
        ({"/tmp/manyhands-escaped": b"!"}, {}),
        ({}, {"cifar-10-batches-bin/data_batch_1.bin": "/etc/passwd"}),
        ({}, {"cifar-10-batches-bin": ".."}),
    ],
    ids=["up", "up twice", "absolute", "link", "folder link"],
)
def test_archives_cannot_escape(members: dict, links: dict, tiny_cifar10: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "bad.tar.gz").write_bytes(archive({**members, **batches(tiny_cifar10)}, links))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=r"bad.tar.gz: member '.*' is a link or points out of its folder; refused"):
        files.unpack_cifar10_archive(tmp_path / "bad.tar.gz", tmp_path / "into")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "into"])
    assert not Path("/tmp/manyhands-escaped").exists()


def test_bad_archives(tiny_cifar10: np.ndarray, tmp_path: Path) -> None:
    good = batches(tiny_cifar10)
    path = tmp_path / "bad.tar.gz"
    for content, message in (
        (archive(good)[:-5000], r"bad.tar.gz: damaged archive"),
        (b"not an archive", r"bad.tar.gz: damaged archive"),
        (
            archive(dict(list(good.items())[:5])),
            "expected cifar-10-batches-bin/test_batch.bin in it, found no such member",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=message):
            files.unpack_cifar10_archive(path, tmp_path / "into")
        assert os.listdir(tmp_path / "into") == []


def atlases(records: np.ndarray, folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True)
    for name, part in zip(files.CIFAR10_BATCHES, records, strict=True):
        sheet = np.zeros((64, 64, 3), np.uint8)
        for i, picture in enumerate(part[:, 1:].reshape(4, 3, 32, 32)):
            y, x = 32 * (i // 2), 32 * (i % 2)
            sheet[y : y + 32, x : x + 32] = picture.transpose(1, 2, 0)
        image.fromarray(sheet).save(folder / f"{name}.webp", lossless=True)
    np.savez(folder / "labels.npz", train_y=records[:5, :, 0].reshape(-1), test_y=records[5, :, 0])


def test_cifar10_atlases(tiny_cifar10: np.ndarray, tmp_path: Path, cache: Path, monkeypatch) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path))
    folder = tmp_path / "cifar10"
    atlases(tiny_cifar10, folder)
    assert_is(files.cifar10(), tiny_cifar10)
    assert (cache / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin").exists()
    (folder / "data_batch_1.webp").unlink()
    assert_is(files.read_cifar10(folder), tiny_cifar10)  # from the cache, unpacked once


def test_bad_atlases(tiny_cifar10: np.ndarray, tmp_path: Path, cache: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "atlases"
    atlases(tiny_cifar10, folder)
    picture = (folder / "data_batch_4.webp").read_bytes()
    (folder / "data_batch_4.webp").write_bytes(picture[: len(picture) // 2])
    with pytest.raises(BadInput, match=r"data_batch_4.webp: expected a WebP image, found none that can be read"):
        files.read_cifar10(folder)
    assert os.listdir(cache / "cifar10") == [], "half a data set was left in the cache"
    image.fromarray(np.zeros((32, 64, 3), np.uint8)).save(folder / "data_batch_4.webp")
    with pytest.raises(BadInput, match=r"data_batch_4.webp: expected 64 x 64 pixels, found \(32, 64, 3\)"):
        files.read_cifar10(folder)
    (folder / "data_batch_4.webp").write_bytes(picture)
    np.savez(folder / "labels.npz", train_y=np.zeros(20, object), test_y=np.zeros(4))
    with pytest.raises(
        BadInput, match=r"labels.npz: expected arrays train_y and test_y \(Object arrays cannot be loaded"
    ):
        files.read_cifar10(folder)
    np.savez(folder / "labels.npz", train_y=np.zeros(19), test_y=np.zeros(4))
    with pytest.raises(BadInput, match=r"labels.npz: expected 24 labels, found \(23,\)"):
        files.read_cifar10(folder)


# --- the real files, where they are ----------------------------------------------------------------------------------

REAL = Path(os.environ.get("MANYHANDS_DATA", "/nowhere"))


@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="no MNIST in MANYHANDS_DATA")
def test_real_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(REAL))
    (images, labels), (_, test_labels) = files.mnist()
    assert labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert images.double().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    for name, form in files.MNIST.items():
        path = REAL / "mnist" / f"{name}.gz"
        if path.exists():
            assert (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) == form


@pytest.mark.skipif(not (REAL / "text").is_dir(), reason="no texts in MANYHANDS_DATA")
def test_real_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_DATA", str(REAL))
    assert len(files.text("tinyshakespeare.txt")) == 1_115_394
    assert len(set(files.text("tinyshakespeare.txt"))) == 65
    for name in ("rt_polarity_pos.txt", "rt_polarity_neg.txt"):
        read = files.text(name)
        assert read.count("\n") == 5331
        found = [(len(c), hashlib.sha256(c).hexdigest()) for c in (read.encode(), read.encode("cp1252"))]
        assert tuple(found) == files.TEXTS[name].forms
