"""`manyhands verify`: what it prints, and how it ends."""

from __future__ import annotations

import json

from manyhands.cli.verify import show
from tests.conftest import ROOT, Command

PLANTS = ROOT / "benchmarks" / "zoo" / "correctness"


def test_a_promise_that_is_not_kept_ends_with_one(command: Command) -> None:
    """Nothing looks into a Dataset's own generator before the start, so ddp promises what it cannot keep."""
    code, out, _ = command("verify", f"{PLANTS}/own_generator.py", "ddp", "--ranks", "2", "--steps", "2", "--json")
    [result] = json.loads(out)["results"]
    assert code == 1
    assert (result["exact"], result["equal"], result["cause"], result["first_step"]) == (True, False, "data", 1)


def test_the_healthy_twin_ends_with_zero(command: Command) -> None:
    code, out, err = command("verify", f"{PLANTS}/own_generator.py:healthy", "ddp", "--ranks", "2", "--steps", "2")
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["ddp", "yes"]
    assert "comparing it with single" in err


def test_a_wrong_name_is_bad_input(command: Command) -> None:
    assert command("verify", "glyphs", "dpp")[0] == 2


def test_the_table_fits_80_columns_and_every_reason_is_a_sentence(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "80")
    result = {
        "strategy": "parameter_server:servers=2,mode=sync,over=network",
        "equal": False,
        "gradient_difference": 0.2722,
        "weight_difference": 1.2e-16,
        "tolerance": 5e-13,
        "first_step": 1,
        "first_layer": "layers.0.weight",
        "cause": "augmentation",
        "reason": "its gradient is off by 2.7e-01 " + "and so on " * 20,
        "cure": "draw from keys",
    }
    show({"results": [result], "findings": [{"name": "x", "message": "the rate is zero", "advice": "raise it"}]})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "augmentation" in out
    assert "to do: draw from keys" in out
    assert "the rate is zero" in out


def test_a_file_without_a_task_is_a_script_and_gets_its_own_arguments(command: Command, monkeypatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from manyhands.studies.verify import script

    asked = []
    monkeypatch.setattr(script, "verify_script", lambda *what: asked.append(what) or {"results": [], "findings": []})
    (tmp_path / "plain.py").write_text("print('training')")
    code, out, _ = command("verify", "plain.py", "--ranks", "3", "--json", "--fast", "--", "--seed", "4")
    assert code == 0
    assert json.loads(out)["results"] == []
    assert asked == [("plain.py", ["--fast", "--seed", "4"], 3, 20)]
    code, _, err = command("verify", "plain.py", "--seed", "4")
    assert code == 2
    assert "takes only --ranks and --steps here (found --seed); put its own arguments after --" in err
