"""compare through the command line: rows that fail, are refused or held up by a slow rank, and what Ctrl-C keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, pressed_once

SMALL = "glyphs:train=640,test=100"
TASK = """
import functools, time
import torch, torch.distributed as dist
import manyhands as mh

def i_am(rank):
    return dist.is_initialized() and dist.get_rank() == rank

{planted}

x = torch.randn(640, 20, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > 0).long()
block = lambda inside: (torch.nn.Linear(inside, 32), Planted(), torch.nn.Tanh())
make = lambda: torch.nn.Sequential(*block(20), *block(32), torch.nn.Linear(32, 2))
task = mh.Task(make, (x, y), torch.nn.functional.cross_entropy, functools.partial(torch.optim.SGD, lr=0.1),
               test=(x, y), batch_size=32, epochs={epochs}, name="planted")
"""
SLOW_FORWARD = """
class Planted(torch.nn.Module):
    def forward(self, x):
        if self.training and i_am(1):
            time.sleep(0.04)
        return x
"""
SLOW_BACKWARD = """
class Sleep(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.view_as(x))
    @staticmethod
    def backward(ctx, gradient):
        if i_am(1):
            time.sleep(0.04)
        return gradient

class Planted(torch.nn.Module):
    def forward(self, x):
        return Sleep.apply(x)
"""
FAILS_UNDER_DDP = """
class Planted(torch.nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 3 and len(x) == 16 and i_am(1):  # half a batch: only where batches are sharded
            raise RuntimeError("planted")
        return x
"""
OTHER_NUMBERS = """
class Planted(torch.nn.Module):
    def forward(self, x):
        return 1.5 * x if i_am(1) else x
"""
SLOW = """
class Planted(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.02 if dist.is_initialized() else 0)
        return x
"""


def plant(planted: str, epochs: int = 1) -> str:
    Path("planted.py").write_text(TASK.format(planted=planted, epochs=epochs))
    return "planted.py"


def test_a_table_within_100_columns_and_a_page(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    words = ["compare", SMALL, "ddp", "--ranks", "2", "--max-steps", "15", "--rounds", "1", "--target", "0.05"]
    code, out, err = command(*words, "--run-dir", "all", "--threads", "1")
    assert code == 0, err
    lines = out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("report:")) <= 100
    head = next(number for number, line in enumerate(lines) if line.startswith("strategy"))  # below a busy machine
    assert "to target" in lines[head]
    assert all(re.search(r"\d\.\d s ", line) for line in lines[head + 1 : head + 3])
    assert "[2/2] ddp: the whole fit (about" in err
    assert Path("all/report.html").stat().st_size > 100_000
    code, out, _ = command("report", "all", "-o", "page.html")
    assert code == 0
    assert Path("page.html").is_file()


CASES = [
    (SLOW_FORWARD, "forward", ("locked", "parameter_server", "pipeline")),
    (SLOW_BACKWARD, "backward", ("ddp", "hogwild")),
]


@pytest.mark.parametrize(("planted", "phase", "strategies"), CASES)
def test_a_slow_rank_is_named_with_its_phase_in_table_and_page(
    command: Command, planted: str, phase: str, strategies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks show the same step time, whoever is slow."""
    monkeypatch.setenv("COLUMNS", "100")
    words = ["compare", plant(planted), *strategies, "--ranks", "2", "--max-steps", "12", "--rounds", "0"]
    code, out, err = command(*words, "--run-dir", "all", "--threads", "1", "--quiet")
    assert code == 0, err
    flat = " ".join(out.split())
    page = Path("all/report.html").read_text()
    for name in strategies:
        record = json.loads(Path(f"all/{name}/run.json").read_text())
        slow = record["slow_rank"]
        assert (slow["rank"], slow["phase"]) == (1, phase), (name, record["per_rank"])
        assert slow["behind_ms"] > 25
        note = f"rank 1 slow in {phase}, {slow['behind_ms']:.1f} ms behind"
        # Two rows whose ranks are equally far behind share one line, which names both.
        assert any(name in line for line in out.splitlines() if line.endswith(note)), out
        assert note in page
    sentence = f"Under {', '.join(strategies[:-1])} and {strategies[-1]}, rank 1 is slow in `{phase}`"
    assert sentence in flat
    assert sentence in page
    assert json.loads(Path("all/single-1t/run.json").read_text())["slow_rank"] is None


def test_an_exact_row_with_another_first_loss_says_so(command: Command) -> None:
    """One rank computes something else, which no trial before the start sees; the first loss shows it for nothing."""
    words = [
        "compare",
        plant(OTHER_NUMBERS),
        "ddp",
        "--ranks",
        "2",
        "--max-steps",
        "12",
        "--rounds",
        "0",
        "--threads",
        "1",
    ]
    code, out, err = command(*words, "--run-dir", "all", "--quiet")
    assert code == 0, err
    record = json.loads(Path("all/ddp/run.json").read_text())
    assert record["exact"]
    assert "ddp begins with a loss of" in record["notes"][-1]
    assert "ddp begins with a loss of" in " ".join(out.split())
    assert not any("begins with" in note for note in json.loads(Path("all/single-1t/run.json").read_text())["notes"])


def test_a_failed_row_leaves_the_others_whole_and_shows_in_the_exit_code(command: Command) -> None:
    task = plant(FAILS_UNDER_DDP)
    refused = "parameter_server:servers=400"
    words = ["--ranks", "2", "--max-steps", "10", "--threads", "1"]
    code, out, err = command("compare", task, "ddp", refused, "pipeline", *words, "--rounds", "1", "--json")
    assert code == 1
    result = json.loads(out)
    assert Path(result["report"]).is_absolute()
    runs = {run["strategy"]: run for run in result["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "single": "done", "ddp": "failed", "parameter_server": "refused", "pipeline": "done",
    }  # fmt: skip
    assert runs["ddp"]["reason"] == "rank 1 of 2 failed in step 3, forward: RuntimeError: planted"
    assert "more servers than pieces to hold (servers: 400)" in runs["parameter_server"]["reason"]
    assert all(len(runs[name]["rounds"]) == 1 and runs[name]["test"] for name in ("single", "pipeline"))
    assert "failed: rank 1 of 2" in err
    code, out, _ = command("compare", task, refused, *words, "--rounds", "0", "--quiet")
    assert code == 0
    assert f"{refused}: refused: parameter_server has more servers" in " ".join(out.split())


@pytest.mark.soak
def test_a_time_limit_ends_one_row_and_the_others_go_on(command: Command) -> None:
    words = ["compare", plant(SLOW, epochs=12), "ddp", "--ranks", "2", "--rounds", "0", "--time-limit", "5"]
    code, out, _ = command(*words, "--threads", "1", "--json", "--quiet")
    runs: list[dict[str, Any]] = json.loads(out)["runs"]
    assert code == 1
    assert [run["status"] for run in runs] == ["done"] * (len(runs) - 1) + ["failed"]
    assert "time limit" in runs[-1]["reason"]


def test_ctrl_c_keeps_the_rows_that_were_finished(nothing_left: None, command: Command) -> None:
    words = ["compare", plant(SLOW, epochs=6), "ddp", "hogwild", "--ranks", "2", "--threads", "1", "--run-dir", "all"]
    with pressed_once("all/ddp/live.json"):
        code, out, err = command(*words)
    assert code == 130
    assert err.strip().splitlines()[-1] == "manyhands: interrupted"
    statuses = {path.parent.name: json.loads(path.read_text()) for path in Path("all").glob("*/run.json")}
    assert statuses["single-1t"]["status"] == "done"
    assert statuses["single-1t"]["test"]["accuracy"] > 0.5
    assert (statuses["ddp"]["status"], statuses["hogwild"]["status"]) == ("stopped", "stopped")
    assert "hogwild: stopped: interrupted before it ended" in out
    assert statuses["ddp"]["reason"] == "interrupted (Ctrl-C)", "the record of its fit was replaced by an empty one"
    assert statuses["ddp"]["threads"] == 1
    assert Path("all/report.html").is_file()


def test_a_row_for_every_number_of_ranks_each_in_its_folder(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["compare", plant(FAILS_UNDER_DDP), "ddp", "--ranks", "2,1,2", "--max-steps", "6", "--rounds", "2"]
    code, out, err = command(*words, "--run-dir", "all", "--threads", "1")
    assert code == 1  # on two ranks it fails; on one it does not
    assert "[3/3] ddp on 2 ranks: the whole fit" in err
    assert max(len(line) for line in out.splitlines() if not line.startswith("report:")) <= 80
    found = {path.parent.name: json.loads(path.read_text()) for path in Path("all").glob("*/run.json")}
    assert {name: (run["ranks"], run["status"]) for name, run in found.items()} == {
        "single-1t": (1, "done"), "ddp-1r": (1, "done"), "ddp-2r": (2, "failed"),
    }  # fmt: skip
    assert found["ddp-1r"]["asked"] == "ddp"
    row = found["ddp-1r"]
    assert [set(times) >= {"forward", "wait"} for times in row["round_phases_ms"]] == [True, True]
    assert row["samples_per_second"] == pytest.approx(sum(row["rounds"]) / 2)
    assert row["others_cores"] >= 0
    whole = row["whole_fit"]
    assert row["seconds"] == pytest.approx(row["steps"] * sum(whole["phases_ms"].values()) / 1000, rel=0.02)
    assert found["ddp-2r"]["whole_fit"] is None


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("0,2", "ranks must be a whole number of at least 1 (found 0)"),
        ("1,,2", "--ranks takes a number or a list such as 1,2,4 (found '1,,2')"),
        ("a", "--ranks takes a number or a list such as 1,2,4 (found 'a')"),
        ("1,3", "hybrid: replicas x stages must be the number of ranks"),
    ],
)
def test_bad_lists_of_ranks_are_one_line(command: Command, ranks: str, message: str) -> None:
    code, _, err = command("compare", SMALL, "ddp", "hybrid", "--ranks", ranks)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert message in err
