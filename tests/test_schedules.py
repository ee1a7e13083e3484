"""The learning-rate schedules, as a loop sees them."""

import itertools
import pickle

import pytest
import torch

from manyhands.errors import BadInput
from manyhands.schedules import Schedule, constant, cosine, linear, scaled_rate


def rates(schedule: Schedule, updates: int, rate: float = 1.0) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = schedule(optimizer, updates)
    seen = []
    for _ in range(updates):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    seen.append(optimizer.param_groups[0]["lr"])
    return seen


def test_cosine_warms_up_in_a_line_then_falls_to_zero():
    seen = rates(cosine(warmup=0.2), 20, rate=0.5)
    assert seen[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert seen[12] == pytest.approx(0.25)  # half way down
    assert seen[-1] == pytest.approx(0.0)
    assert all(a > b for a, b in itertools.pairwise(seen[4:]))


def test_linear_falls_in_equal_steps():
    seen = rates(linear(), 10)
    assert seen == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert rates(linear(warmup=0.5), 4) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5, 0.0])


def test_constant_stays():
    assert rates(constant(), 4) == [1.0] * 5
    assert rates(constant(warmup=0.5), 4) == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("schedule", [cosine(0.0), cosine(0.9), linear(0.3), constant(0.5)])
@pytest.mark.parametrize("updates", [1, 2, 3, 100])
def test_every_update_has_a_rate_above_zero(schedule: Schedule, updates: int):
    assert all(0 < rate <= 1 for rate in rates(schedule, updates)[:-1])


def test_updates_beyond_the_end_keep_the_last_rate():
    assert linear().factor(15, 10) == 0.0
    assert constant().factor(15, 10) == 1.0


def test_a_schedule_is_a_value():
    assert cosine(0.1) == cosine(0.1) != linear(0.1)
    assert pickle.loads(pickle.dumps(cosine(0.1))) == cosine(0.1)
    assert repr(cosine(0.1)) == "Schedule(shape='cosine', warmup=0.1)"


def test_every_group_keeps_its_own_rate():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1.0, 10.0)]
    optimizer = torch.optim.SGD(groups, lr=0.0)
    scheduler = linear()(optimizer, 2)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 5.0]


@pytest.mark.parametrize("warmup", [-0.1, 1.0, 5])
def test_a_warm_up_that_is_no_share_is_refused(warmup: float):
    with pytest.raises(BadInput, match=r"warmup is a share of all updates: at least 0 and below 1 \(found"):
        cosine(warmup)


def test_an_unknown_shape_is_refused():
    with pytest.raises(BadInput, match='no schedule named "step"; there are: cosine, linear, constant'):
        Schedule("step")


def test_the_rate_follows_the_batch():
    assert scaled_rate(0.1, batch=512, reference=128) == pytest.approx(0.4)
    assert scaled_rate(0.1, batch=512, reference=128, rule="sqrt") == pytest.approx(0.2)
    with pytest.raises(BadInput, match='no rule named "cube" to scale a rate with the batch; there are: linear, sqrt'):
        scaled_rate(0.1, 2, 1, rule="cube")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"batch sizes must be at least 1 \(found batch=0, reference=128\)"):
        scaled_rate(0.1, 0, 128)
