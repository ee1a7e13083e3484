"""verify for plain scripts: causes named by a change from outside, none named for what is right."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.bridges.scripts.witnessed import Stage
from manyhands.errors import BadInput, RankFailed
from manyhands.studies.verify.script import verify_script
from manyhands.studies.verify.script_or_task import is_script
from tests.conftest import ROOT

ZOO = ROOT / "benchmarks" / "zoo" / "correctness" / "scripts"
PLANTS = sorted(path.stem for path in ZOO.glob("*.py"))
QUICK = ("clipping",)  # the others in `make soak`


@pytest.fixture(scope="module", autouse=True)
def one_start() -> Iterator[None]:
    """All tests here start their scripts from one process, which imports torch once."""
    with pytest.MonkeyPatch.context() as patch:
        enter, leave, kept = Stage.__enter__, Stage.__exit__, []  # type: ignore[var-annotated]

        def shared(stage: Stage) -> Stage:
            if not kept:
                enter(stage)
                kept.append(stage)
            stage._process = kept[0]._process
            return stage

        patch.setattr(Stage, "__enter__", shared)
        patch.setattr(Stage, "__exit__", lambda *_: None)
        yield
        if kept:
            leave(kept[0])


def verified(path: Path, *arguments: str, steps: int = 20) -> dict[str, Any]:
    document = verify_script(path, arguments, 2, steps)
    assert set(document) == {"results", "findings"}
    [row] = document["results"]
    assert (row["strategy"], row["exact"]) == ("script", True)
    return row


def planted(name: str) -> str:
    tree = ast.parse((ZOO / f"{name}.py").read_text())
    [value] = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CAUSE"
    ]
    return str(ast.literal_eval(value))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.soak) for name in PLANTS]
)
def test_what_is_planted_is_named_and_its_twin_is_not(name: str) -> None:
    row = verified(ZOO / f"{name}.py")
    assert (row["equal"], row["cause"]) == (False, planted(name)), row["reason"]
    assert row["reason"].startswith("step ")
    assert row["cure"]
    assert row["first_step"] >= 1
    twin = verified(ZOO / f"{name}.py", "--healthy")
    assert (twin["equal"], twin["cause"], twin["cure"]) == (True, None, None), twin["reason"]
    if twin["weight_difference"] is not None:
        assert twin["weight_difference"] <= twin["tolerance"] < 1e-3


START = "import torch, sys\nimport torch.distributed as dist\nfrom torch import nn\n"
WATCHED = START + (
    "torch.manual_seed(3)\nmodel = nn.Linear(4, 2)\noptimizer = torch.optim.Adam(model.parameters())\n"
    "x = torch.randn(6, 4)\n"
    "for _ in range(3):\n    optimizer.zero_grad()\n    model(x).pow(2).mean().backward()\n    optimizer.step()\n"
)


def test_a_script_that_is_watched_computes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(WATCHED)
    names: dict[str, Any] = {}
    exec(compile(WATCHED, str(path), "exec"), names)
    with Stage([str(path)], 1, 20) as stage:
        seen = stage.run(1)
    assert (seen.problem, seen.updates, seen.ranks[0]["names"]) == (None, 3, ["weight", "bias"])
    weights = seen.array("weights2", 0)
    assert weights is not None
    assert weights[:8].tolist() == names["model"].weight.detach().double().flatten().tolist()


def test_ranks_that_nobody_seeds_draw_numbers_of_their_own(tmp_path: Path) -> None:
    """Ranks forked from one process had its generator: unseeded models started equal, and dropout was called a fault."""
    path = tmp_path / "unseeded.py"
    path.write_text(WATCHED.replace("torch.manual_seed(3)\n", "").replace("model(x)", "model(x + torch.randn(6, 4))"))
    with Stage([str(path)], 2, 20) as stage:
        once, again = stage.run(2), stage.run(2)
    weights = [one.array("start", rank) for one in (once, again) for rank in (0, 1)]
    assert all(one is not None for one in weights)
    assert weights[0].tolist() == weights[2].tolist() != weights[1].tolist()  # type: ignore[union-attr]


def test_ranks_that_never_meet_are_not_reduced(tmp_path: Path) -> None:
    path = tmp_path / "alone.py"
    path.write_text(WATCHED)
    row = verified(path)
    assert (row["equal"], row["cause"]) == (False, "not_reduced")
    assert "never joins a process group" in row["reason"]


def test_ranks_that_a_script_spawns_are_those_that_were_started(tmp_path: Path) -> None:
    """The DDP tutorial starts its ranks with mp.spawn: two ranks each would start two more."""
    path = tmp_path / "spawns.py"
    path.write_text(
        START + "import torch.multiprocessing as mp\n"
        "def work(rank, world):\n"
        "    dist.init_process_group('gloo', 'tcp://127.0.0.1:1', rank=rank, world_size=world)\n"
        "    torch.manual_seed(rank)\n"
        "    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(4):\n"
        "        optimizer.zero_grad()\n"
        "        model(torch.randn(5, 3)).pow(2).mean().backward()\n"
        "        optimizer.step()\n"
        "if __name__ == '__main__':\n    mp.spawn(work, args=(2,), nprocs=2)\n"
    )
    row = verified(path)
    assert (row["equal"], row["cause"]) == (True, None), row["reason"]
    assert row["reason"].startswith("4 steps on 2 ranks: all ranks used the average of their gradients")
    assert "one rank could not be tried" in row["reason"]
    with pytest.raises(BadInput, match=r"spawns.py starts 2 ranks itself \(mp.spawn\); use --ranks 2"):
        verify_script(path, (), 3, 4)


def test_scripts_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "idle.py"
    path.write_text("import torch\n")
    with pytest.raises(BadInput, match=r"idle\.py makes no optimizer step, so there is nothing to compare"):
        verify_script(path, (), 2, 5)
    with pytest.raises(BadInput, match=r"2 ranks or more \(found --ranks 1\)"):
        verify_script(path, (), 1, 5)
    with pytest.raises(BadInput, match=r"--steps must be 1 or more \(found 0\)"):
        verify_script(path, (), 2, 0)
    with pytest.raises(BadInput, match=r"no script at .*missing\.py"):
        verify_script(tmp_path / "missing.py", (), 2, 5)
    path.write_text("raise KeyError('lost')\n")
    with pytest.raises(RankFailed, match=r"idle.py failed: rank 0 of 2: KeyError: 'lost'") as told:
        verify_script(path, (), 2, 5)
    assert told.value.traceback is not None
    assert "manyhands" not in told.value.traceback


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("import torch\nmodel = 1\n", True),
        ("task = 1\n", False),
        ("import manyhands as mh\nhealthy, task = 1, 2\n", False),
        ("task: int = 1\n", False),
        ("from other import task\n", False),
        ("def task():\n    pass\n", False),
        ("if True:\n    task = 1\n", False),
        ("def main():\n    task = 1\n", True),
        ("this is no Python\n", False),
    ],
)
def test_a_file_without_a_task_is_a_script(text: str, script: bool, tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text(text)
    assert is_script(path) is script
    assert not is_script(tmp_path / "none.py")
    assert not is_script("glyphs")
