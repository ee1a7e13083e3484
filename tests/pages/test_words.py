"""Every sentence of a conclusion, from records made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from manyhands.pages.comparing import relation
from manyhands.pages.comparison_table import comparison_rows
from manyhands.pages.words import conclusion, remarks, sentences, verdict
from manyhands.record.run import Run

Make = Callable[..., Run]


def test_the_gain_is_the_second_core(make: Make) -> None:
    runs = [make("single", 4800), make("single", 7600, threads=2), make("ddp", 7680)]
    assert conclusion(runs) == (
        "ddp is 1.6x faster than one process with one thread, but one process with two threads is as fast: "
        "the gain is the second core, not ddp."
    )


def test_a_gain_that_cannot_be_told_from_that_of_the_cores_is_not_denied(make: Make) -> None:
    """Where intervals overlapped it was claimed that the gain was the second core's."""
    wide = make("single", 7600, threads=2, rounds=[6000, 7600, 9000])
    assert verdict([make("single", 4800), wide, make("hogwild", 7680)]) == (
        "hogwild is 1.6x faster than one process with one thread, but three rounds cannot tell it from one process with "
        "two threads; use --rounds 9."
    )


def test_with_more_cores_the_gain_is_the_other_cores(make: Make) -> None:
    runs = [make("single", 1000, threads=4), make("single", 3900, threads=16), make("ddp", 3900, threads=4, ranks=4)]
    assert verdict(runs).endswith(
        "one process with 16 threads is as fast: the gain is the other twelve cores, not ddp."
    )


def test_a_strategy_faster_than_all_cores_is_praised_for_it(make: Make) -> None:
    runs = [make("single", 4000), make("single", 5000, threads=2), make("hogwild", 7200)]
    assert verdict(runs) == (
        "hogwild is 1.4x faster than one process with two threads and 1.8x faster than one process with one thread."
    )


def test_threads_beat_ranks(make: Make) -> None:
    runs = [make("single", 4000), make("single", 7200, threads=2), make("ddp", 6000)]
    assert verdict(runs) == (
        "One process with two threads is 1.2x faster than ddp, which is 1.5x faster than one process with one thread: "
        "here threads use the cores better than ranks do."
    )


def test_a_small_lead_is_told_in_percent(make: Make) -> None:
    runs = [make("single", 4000), make("ddp", 4280)]
    assert verdict(runs) == "ddp is 7 % faster than one process with one thread."


def test_ranks_that_gain_nothing(make: Make) -> None:
    runs = [make("single", 4000), make("single", 4010, threads=2), make("ddp", 4020)]
    assert verdict(runs) == "ddp is only as fast as one process with two threads: more ranks gain nothing here."


def test_ranks_that_cost_more_than_they_gain(make: Make) -> None:
    runs = [make("single", 4000), make("ddp", 3000)]
    assert verdict(runs) == (
        "One process with one thread is 1.3x faster than ddp: "
        "on this machine, parallel training costs more than it saves."
    )


def test_a_tie_of_strategies_behind_one_process(make: Make) -> None:
    runs = [make("single", 4000), make("ddp", 2000), make("hogwild", 2020)]
    assert verdict(runs).startswith(
        "One process with one thread is about 2.0x faster than ddp and hogwild: on this machine, "
    )


def test_all_cores_lead_and_the_strategy_only_equals_one_thread(make: Make) -> None:
    runs = [make("single", 4000), make("single", 7000, threads=2), make("ddp", 4000), make("pipeline", 2000)]
    assert verdict(runs) == (
        "One process with two threads is 1.8x faster than ddp, which is only as fast as one process with one thread."
    )
    runs[2] = make("ddp", 3000)
    assert verdict(runs).endswith("than ddp, which is slower even than one process with one thread.")
    runs[2] = make("ddp", 4100, rounds=[3000.0, 4100.0, 5200.0])
    assert verdict(runs).endswith("than ddp, which three rounds cannot tell from one process with one thread.")


def test_a_clear_winner_is_named_before_one_with_a_wild_round(make: Make) -> None:
    """The strategy with the fastest median round was unclear, and nothing was said of the one behind it that surely won."""
    wild = make("hogwild", 5300, rounds=[3600.0, 5300.0, 7600.0])
    assert (
        verdict([make("single", 4000), make("ddp", 5200), wild])
        == "ddp is 1.3x faster than one process with one thread."
    )


def test_one_thread_may_be_faster_than_two(make: Make) -> None:
    """The row with all cores was taken for the fastest of one process, whatever it measured."""
    runs = [make("single", 4000), make("single", 2000, threads=2), make("ddp", 3000)]
    assert verdict(runs).startswith("One process with one thread is 1.3x faster than ddp: on this machine")


def test_runs_without_rounds_are_told_how_to_get_some(make: Make) -> None:
    once = {"rounds": None, "comparison": "a"}
    runs = [make("single", 4000, **once), make("ddp", 4200, **once)]
    assert verdict(runs) == "One fit each cannot tell ddp and one process with one thread apart; use --rounds 9."
    stored = [make("single", 4000, rounds=None), make("ddp", 4200, rounds=None)]
    assert verdict(stored).endswith("apart; `manyhands compare` measures them in turn.")
    five = [
        make("single", 4000, rounds=[3000.0, 3500.0, 4000.0, 4500.0, 5000.0]),
        make("ddp", 4000, rounds=[4000.0] * 5),
    ]
    assert verdict(five).endswith("use --rounds 15.")


def test_strategies_inside_each_others_spread_win_together(make: Make) -> None:
    runs = [make("single", 4000), make("ddp", 7000), make("hogwild", 7060), make("locked", 3900)]
    assert verdict(runs) == "ddp and hogwild are about 1.8x faster than one process with one thread."


def test_a_tie_by_a_wide_spread_says_both_ends(make: Make) -> None:
    """hogwild's rounds reached from 0.9 to 1.6 of ddp's, and both were said to be about as fast as hogwild's best."""
    single = make("single", 4000, rounds=[4000.0, 4010.0, 3990.0])
    wide = make("hogwild", 5600, rounds=[4400.0, 5600.0, 6800.0])
    assert verdict([single, make("ddp", 4800, rounds=[4790.0, 4800.0, 4810.0]), wide]) == (
        "ddp and hogwild are 1.2x to 1.4x faster than one process with one thread."
    )
    assert verdict([single, make("ddp", 4300, rounds=[4290.0, 4300.0, 4310.0]), wide]) == (
        "hogwild is 1.4x faster than one process with one thread."
    )
    level = make("ddp", 4600, rounds=[3900.0, 4600.0, 5300.0])  # inside hogwild's spread, and inside single's
    assert verdict([single, level, wide]) == "hogwild is 1.4x faster than one process with one thread."


def test_a_difference_inside_the_spread_is_no_difference(make: Make) -> None:
    noisy = make("ddp", 5000, rounds=[3900.0, 5000.0, 6100.0])
    assert relation(noisy, make("single", 4000)) == "unclear"
    assert relation(make("ddp", 5000), make("single", 4000)) == "faster"
    assert relation(make("single", 4000), make("ddp", 5000)) == "slower"
    assert relation(make("ddp"), make("single", 4000)) is None
    assert verdict([make("single", 4000), noisy]) == (
        "Three rounds cannot tell ddp and one process with one thread apart; use --rounds 9."
    )


def test_a_slow_minute_of_the_machine_falls_on_both_rows_of_a_comparison(make: Make) -> None:
    """A comparison once called 1.7x "only as fast" because the machine was slow in the first round of every row."""
    single = make("single", 4056, rounds=[3941.0, 4056.0, 5110.0], comparison="a")
    hogwild = make("hogwild", 7046, rounds=[4791.0, 7297.0, 7046.0], comparison="a")
    assert relation(hogwild, single) == "faster"
    assert relation(single, hogwild) == "slower"
    assert verdict([single, hogwild]) == "hogwild is 1.7x faster than one process with one thread."
    wavering = make("ddp", 4100, rounds=[3900.0, 4300.0, 5200.0], comparison="a")
    assert relation(wavering, single) == "unclear"  # a round in which it was slower
    assert relation(make("hogwild", 7046, rounds=[4791.0, 7297.0, 7046.0], comparison="b"), single) == "unclear"


def test_one_row_alone(make: Make) -> None:
    run = make("ddp", 5400, phases_ms={"forward": 3.0, "backward": 6.0, "other": 1.0})
    assert conclusion([run]) == "ddp trains 5,400 samples/s on two ranks; 60 % of its step is backward."
    assert conclusion([make("single", 10)]) == "single trains 10 samples/s on one rank."


def test_without_a_single_row(make: Make) -> None:
    doubt = "; without a `single` baseline it is impossible to say whether parallelism helps."
    assert verdict([make("ddp", 5000), make("locked", 4000)]) == "ddp is 1.2x faster than locked" + doubt
    three = [make("ddp", 5000), make("locked", 4000), make("pipeline", 3000)]
    assert verdict(three) == "ddp is 1.2x faster than locked, the next" + doubt
    assert verdict([make("ddp", 5000), make("locked", 5010)]) == "locked and ddp are equally fast" + doubt
    wide = make("locked", 5010, rounds=[4000.0, 5010.0, 6000.0])
    assert verdict([make("ddp", 5000), wide]) == (
        "Three rounds cannot tell locked and ddp apart; use --rounds 9" + doubt
    )


def test_only_single_rows(make: Make) -> None:
    runs = [make("single", 4000), make("single", 6400, threads=2)]
    assert verdict(runs) == "One process with two threads is 1.6x faster than one process with one thread."
    days = [make("single", 4000, started="monday"), make("single", 4010, started="tuesday")]
    assert verdict(days) == "single (tuesday) and single (monday) are equally fast."


def test_nothing_measured(make: Make) -> None:
    runs = [make("ddp", status="failed", reason="rank 1 of 2 failed in step 3")]
    assert conclusion(runs) == (
        "No run was completed, so there is nothing to compare. ddp failed: rank 1 of 2 failed in step 3."
    )


def test_runs_of_other_tasks_batches_or_machines_are_not_compared(make: Make) -> None:
    text = verdict([make("single", 4000), make("ddp", 8000, task="mnist")])
    assert text == "These runs differ in task (mnist and glyphs), so their speeds are not compared."
    text = verdict([make("single", 4000), make("ddp", 8000, batch_size=32, environment={"cores": 8})])
    assert text == "These runs differ in batch size (32 and 128) and machine, so their speeds are not compared."
    assert comparison_rows([make("single", 4000), make("ddp", 8000, task="mnist")])[1]["speedup"] is None


def test_a_gpu_is_compared_with_one_gpu_whatever_the_threads(make: Make) -> None:
    runs = [make("single", 4000, device="cuda:0", threads=8), make("ddp", 6000, device="cuda:0", threads=4)]
    assert verdict(runs) == "ddp is 1.5x faster than one process on one GPU."
    assert comparison_rows(runs)[1]["efficiency"] == pytest.approx(0.75)


def test_lost_accuracy_of_the_fastest_comes_first(make: Make) -> None:
    runs = [
        make("single", 4000, test={"accuracy": 0.971}),
        make("hogwild", 8000, test={"accuracy": 0.958}),
        make("locked", 5000, test={"accuracy": 0.967}),
        make("ddp", status="failed", reason="boom"),
    ]
    assert remarks(runs)[:2] == [
        "hogwild ends 1.3 points of test accuracy below one process (95.8 % against 97.1 %).",
        "ddp failed: boom.",
    ]
    assert not any("locked ends" in sentence for sentence in remarks(runs))  # 0.4 points are not worth a sentence


def test_a_slow_rank_is_named_with_its_phase(make: Make) -> None:
    runs = [
        make("single", 4000),
        make("ddp", 5000, slow_rank={"rank": 1, "phase": "forward", "behind_ms": 12.34}),
        make("locked", 4900, slow_rank={"rank": 1, "phase": "forward", "behind_ms": 11.9}),
    ]
    sentence = "Under ddp and locked, rank 1 is slow in `forward` (11.9 to 12.3 ms per step behind)."
    assert sentence in conclusion(runs)
    assert comparison_rows(runs)[1]["note"] == "rank 1 slow in forward, 12.3 ms behind"
    runs = [make("parameter_server", 5000, slow_rank={"rank": None, "server": 1, "phase": "update", "behind_ms": 4.0})]
    assert "Under parameter_server, server 1 is slow in `update` (4.0 ms per step behind)." in conclusion(runs)
    assert comparison_rows(runs)[0]["note"] == "server 1 slow in update, 4.0 ms behind"


def test_a_much_slower_strategy_gets_the_phase_that_one_process_has_not(make: Make) -> None:
    """It got its largest phase: backward, as in every row there is, of a strategy that loses its time waiting."""
    single = make("single", 4000, phases_ms={"forward": 10.0, "backward": 22.0})
    slow = make("locked", 2000, phases_ms={"forward": 5.0, "backward": 30.0, "wait": 29.0})
    assert remarks([single, make("ddp", 6000), slow]) == [
        "locked is 3.0x slower than ddp, mostly because of `wait` (45 % of its step)."
    ]
    assert remarks([single, slow]) == ["locked is slow mostly because of `wait` (45 % of its step)."]
    assert remarks([make("single", 4000), make("ddp", 6000), slow]) == ["locked is 3.0x slower than ddp."]
    assert remarks([single, make("ddp", 2900), slow])[0].startswith("locked is 2.0x slower than one process with one")
    assert remarks([make("single", 2900), make("ddp", 2900), slow]) == []


def test_a_phase_that_one_process_has_too_is_compared_by_the_core_time_of_a_sample(make: Make) -> None:
    """Two ranks with half the samples each: 22 ms of backward are twice the core time of 22 ms in one process."""
    single = make("single", 4000, phases_ms={"forward": 10.0, "backward": 22.0})
    slow = make("ddp", 2500, phases_ms={"forward": 7.0, "backward": 33.0, "wait": 9.0})
    assert remarks([single, slow]) == [
        "ddp is slow mostly because `backward` takes 3.0x as much core time per sample as in one process."
    ]


def other_users(*runs: Run, cores: float = 0.9) -> list[Run]:
    for run in runs:
        run.others_cores = cores
    return list(runs)


def test_a_busy_machine_comes_first_and_takes_the_conclusions_away(make: Make) -> None:
    """Beside a process that used one of two cores it was said that parallel training does not pay on this machine."""
    busy = (
        "Other processes used 0.9 of 2 cores while this was measured: speeds, and which row is fastest, may be different "
        "on a quiet machine."
    )
    runs = other_users(make("single", 4000), make("ddp", 1600), make("pipeline", status="failed", reason="boom"))
    assert sentences(runs)[:2] == [busy, "As measured, one process with one thread is 2.5x faster than ddp."]
    assert conclusion(runs).startswith(busy)
    assert conclusion(runs).endswith("than ddp. pipeline failed: boom.")
    ties = other_users(make("single", 4000), make("single", 6000, threads=2), make("ddp", 6000))
    assert sentences(ties)[1] == (
        "As measured, three rounds cannot tell ddp and one process with two threads apart; measure again on a quiet machine."
    )
    assert (
        relation(*other_users(make("ddp", 5000), make("single", 4000), cores=0.32)) == "faster"
    )  # 1.25 > 1 / (1 - 0.16)
    assert relation(*other_users(make("ddp", 5000), make("single", 4000), cores=0.5)) == "unclear"
    assert relation(*other_users(make("ddp", 9000), make("single", 4000), cores=2.0)) == "faster"
    quiet = other_users(make("single", 4000), make("ddp", 3000), cores=0.2)
    assert sentences(quiet)[0].endswith("on this machine, parallel training costs more than it saves.")
    mixed = [make("single", 4000), *other_users(make("ddp", 3000), make("locked", 2000), cores=1.26)]
    assert sentences(mixed)[0].startswith("Other processes used 1.3 of 2 cores while ddp and locked were measured: ")


def test_what_failed_comes_before_who_is_slow(make: Make) -> None:
    slow = make("ddp", 5000, slow_rank={"rank": 1, "phase": "forward", "behind_ms": 12.34})
    told = remarks([make("single", 4000), slow, make("locked", status="failed", reason="boom")])
    assert [sentence.split()[0] for sentence in told] == ["locked", "Under"]


def test_failed_stopped_and_refused_rows_each_get_a_sentence(make: Make) -> None:
    runs = [
        make("single", 4000),
        make(
            "pipeline", status="refused", reason="pipeline cannot use more stages than layers (stages: 8, layers: 5)."
        ),
        make("ddp", status="stopped"),
        make("hogwild", status="failed", reason="rank 1 failed: " + "x" * 300 + "\nTraceback"),
    ]
    failed, stopped, refused = remarks(runs)
    assert failed.startswith("hogwild failed: rank 1 failed: xxx")
    assert failed.endswith("x….")
    assert "Traceback" not in failed
    assert len(failed) < 200
    assert stopped == "ddp was stopped."
    assert refused == "pipeline was refused: it cannot use more stages than layers (stages: 8, layers: 5)."


def test_a_conclusion_has_at_most_a_verdict_and_a_remark(runs: list[Run]) -> None:
    assert conclusion(runs) == f"{verdict(runs)} {remarks(runs)[0]}"
    assert len(remarks(runs)) > 1


def test_a_slow_loader_is_the_answer_and_not_a_strategy(make: Make) -> None:
    """A task with 88 % of its step in load was answered with "hogwild is 1.7x faster"; four loader workers gave 2.7x."""
    slow = {
        "steps": 400,
        "seconds": 3.2,
        "phases_ms": {"load": 7.04, "forward": 0.4, "backward": 0.56},
        "data": "dataset",
    }
    runs = [make("single", 4000, **slow), make("hogwild", 6800, **slow), make("ddp", 6000, **slow)]
    assert conclusion(runs) == (
        "In one process with one thread, loading the data takes 88 % of the step (7.0 of 8.0 ms): try --loader-workers 4. "
        "As it is, hogwild is 1.7x faster than one process with one thread."
    )
    assert sentences(runs)[2:] == []  # that of hogwild's own step is the same and not told again
    in_memory = [
        make(run.strategy, 4000 if run.strategy == "single" else 6800, **{**slow, "data": "memory"}) for run in runs[:2]
    ]
    assert conclusion(in_memory) == "hogwild is 1.7x faster than one process with one thread."
    assert conclusion(runs[:1]) == (
        "single trains 4,000 samples/s on one rank. Loading the data takes 88 % of the step (7.0 of 8.0 ms): "
        "try --loader-workers 4."
    )


def test_what_the_fastest_row_spends_is_a_remark(make: Make) -> None:
    busy = {"steps": 400, "seconds": 3.2, "phases_ms": {"communication": 5.0, "forward": 1.0, "backward": 2.0}}
    runs = [make("single", 4000), make("ddp", 5000, **busy)]
    assert conclusion(runs) == (
        "ddp is 1.2x faster than one process with one thread. Under ddp, communication takes 62 % of the step (5.0 of "
        "8.0 ms): --accumulate 4 communicates only every 4 steps; local_sgd:period=8 (not exact) averages weights every 8 updates."
    )


def test_a_difference_that_another_seed_would_bring_is_called_noise(make: Make) -> None:
    def trained(samples: int) -> list[Run]:
        runs = [make("single", 4000, test={"accuracy": 0.971, "samples": samples})]
        return [*runs, make("hogwild", 8000, test={"accuracy": 0.958, "samples": samples})]

    assert remarks(trained(10_000)) == [
        "hogwild ends 1.3 points of test accuracy below one process (95.8 % against 97.1 %)."
    ]
    assert remarks(trained(500)) == [
        "The test accuracies of hogwild (95.8 %) and one process (97.1 %) differ by no more than noise: 500 test samples "
        "cannot show less than 2.3 points."
    ]


def test_an_exact_row_that_begins_with_another_loss_is_told_first(make: Make) -> None:
    def rows(first: float, **fields: Any) -> list[Run]:
        own = {"exact": True, **fields}
        return [make("single", 4000, losses=[2.302585, 2.1]), make("ddp", 7000, losses=[first, 2.1], **own)]

    assert remarks(rows(2.302585 * (1 + 1.2e-7))) == []
    assert remarks(rows(2.302585 * (1 + 4.6e-5))) == [
        "ddp begins with a loss of 2.30269 where one process has 2.30259: it does not train what one process trains; "
        "`manyhands verify` finds out why."
    ]
    assert remarks(rows(3.0, exact=False)) == []  # it promises nothing
    assert remarks(rows(3.0, precision="bf16")) == []


def test_rows_refused_for_one_reason_share_a_sentence(make: Make) -> None:
    rows = [make("hogwild", status="refused", reason="shares memory", ranks=ranks) for ranks in (2, 4)]
    assert "hogwild (2 ranks) and hogwild (4 ranks) were refused: shares memory." in remarks([make("single", 1), *rows])


def test_batches_that_grew_and_cost_accuracy_are_one_sentence_a_strategy(scaled: Callable[..., list[Run]]) -> None:
    """Four rows said it in four sentences, and nobody read the rest."""
    runs = scaled({"ddp": {1: 1000, 2: 1900, 4: 3500}}, weak=True)
    for run in runs:
        if run.ranks > 1 and run.test:
            run.test["accuracy"] = 0.97 - 0.04 * run.ranks
    said = [sentence for sentence in remarks(runs) if "accuracy" in sentence or "updates" in sentence]
    assert said == [
        "Larger batches mean fewer updates: ddp ends at 89.0 % with 256 and 81.0 % with 512, one process at 97.0 %."
    ]
