"""Captured steps without a GPU: the same program run again instead of a recorded graph; then with one (marked gpu)."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import manyhands as mh
from manyhands.data.order import Shard
from manyhands.data.resident import Resident
from manyhands.record.clock import Clock
from manyhands.schedules import cosine
from manyhands.strategies.job import StepSettings
from manyhands.strategies.pieces.worker import OrdinaryWorker
from manyhands.training.build import build
from manyhands.training.capture.capture import why_not
from manyhands.training.capture.captured import Captured
from manyhands.training.capture.graph import Before, CannotRecord, Weights, apart, compare_updates


def shift(images, keys):
    return images + mh.augment.uniform(keys, 1)


def make_task(samples=103, batch=10, augment=shift, schedule=None, optimizer=None, **options):
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(samples, 6, generator=generator), torch.randint(0, 3, (samples,), generator=generator)
    return mh.Task(
        model=options.pop("model", None) or partial(_mlp),
        train=data,
        loss=F.cross_entropy,
        optimizer=optimizer or partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        batch_size=batch,
        augment=augment,
        schedule=schedule or cosine(warmup=0.1),
        epochs=3,
        **options,
    )


def _mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def worker_of(task, accumulate=1, clip=None, fuse=True):
    job = build(task, StepSettings(epochs=task.epochs, accumulate=accumulate, clip=clip, fuse=fuse))
    rank = SimpleNamespace(clock=Clock(), device=torch.device("cpu"), leads=True, index=0)
    model = copy.deepcopy(job.model)
    return job, OrdinaryWorker(job, rank, model, model)


def data_of(job, first=0, of=1):
    return Resident(job.train, job.order, Shard(first, of), job.task.augment is not None, torch.device("cpu"))


def prepare_with(job, data):
    def prepare(batch):
        data.fetch(batch)
        if job.task.augment is not None:
            batch.input = job.task.augment(batch.input, batch.keys)

    return prepare


def captured_worker(task, units, **settings):
    """A captured worker whose recording is the program itself; fused kernels read no rate from a tensor on every CPU."""
    job, worker = worker_of(task, fuse=False, **settings)
    data = data_of(job)
    worker.updater.optimizer._opt_called = True  # warming up a recording makes a step before the schedule moves
    captured = Captured(worker, data, prepare_with(job, data))
    captured.use(lambda: captured.program(1), lambda: captured.program(units), units)
    return job, captured


def all_losses(found):
    return [] if found is None else [float(x) for loss in found_list(found) for x in loss.mean.reshape(-1)]


def found_list(found):
    return found if isinstance(found, list) else [found]


def train_ordinary(task, epochs=3, **settings):
    job, worker = worker_of(task, fuse=False, **settings)
    data, losses = data_of(job), []
    prepare = prepare_with(job, data)
    for epoch in range(epochs):
        for batch in data.epoch(epoch):
            prepare(batch)
            losses += all_losses(worker.step(batch))
    return worker, losses


def train_captured(task, units, epochs=3, look_at=(), **settings):
    _job, captured = captured_worker(task, units, **settings)
    losses, steps = [], 0
    for epoch in range(epochs):
        for batch in captured.data.epoch(epoch):
            losses += all_losses(captured.step(batch))
            steps += 1
            if steps in look_at:
                losses += all_losses(captured.settle())
        losses += all_losses(captured.settle())
    return captured, losses


@pytest.mark.parametrize("units", [1, 2, 4, 9])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_replayed_steps_are_the_ordinary_ones(units, accumulate):
    task = make_task()
    units = min(units, 10 // accumulate)
    worker, expected = train_ordinary(task, accumulate=accumulate)
    captured, losses = train_captured(task, units, accumulate=accumulate)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, value in worker.weights().items():
        torch.testing.assert_close(captured.weights()[name], value, rtol=1e-5, atol=1e-6)
    assert captured.updates == worker.updates
    assert captured.learning_rate == pytest.approx(worker.learning_rate)
    assert 0 < captured.replayed < 33  # the short last batch of each epoch runs as it always did


def an_update_of_adam():
    """Weights before, an update of them, and the same update with another sign for a share of the numbers."""
    torch.manual_seed(0)
    exact = [torch.randn(200, 50), torch.zeros(50)]
    step = [1e-3 * torch.ones_like(tensor).copysign(torch.randn_like(tensor)) for tensor in exact]

    def flipped(share):
        chosen = [torch.rand_like(tensor) < share for tensor in exact]
        return [a + torch.where(c, -b, b) for a, b, c in zip(exact, step, chosen, strict=True)]

    return exact, flipped


def test_a_recording_is_compared_with_what_the_ordinary_step_leaves_open():
    """Attention's gradient ends in atomic additions; Adam's first steps made of the last bit another sign: never recorded."""
    exact, flipped = an_update_of_adam()
    began, ordinary, again = (Weights(values, []) for values in (exact, flipped(0), flipped(0.01)))
    compare_updates(began, ordinary, ordinary, ordinary)
    compare_updates(began, ordinary, again, Weights(flipped(0.01), []))
    with pytest.raises(
        CannotRecord, match=r"the recorded step differs from the ordinary one by \S+ of the largest weight$"
    ):
        compare_updates(began, ordinary, ordinary, Weights(flipped(0.01), []))
    for values in (exact, flipped(0.5)):  # no step at all, or half of its signs
        with pytest.raises(CannotRecord):
            compare_updates(began, ordinary, again, Weights(values, []))


def test_where_the_gradients_agree_the_weights_need_only_go_the_same_way():
    """GPT-2 of 124 million parameters: recorded products are summed in another order than ordinary ones, so Adam stepped the
    other way wherever a gradient was nothing but rounding (keys' biases, say), and its steps were never recorded."""
    exact, flipped = an_update_of_adam()
    gradient = [torch.randn_like(tensor) for tensor in exact]
    near = [value + 0.01 * torch.randn_like(value) for value in gradient]
    other = [value + 0.2 * torch.randn_like(value) for value in gradient]
    began = Weights(exact, [torch.zeros(()) for _ in exact])
    ordinary = Weights(flipped(0), gradient)
    compare_updates(began, ordinary, ordinary, Weights(flipped(0.02), near))
    with pytest.raises(CannotRecord, match=r"largest weight, its gradients by \d\d\.\d% and its update by \d\d\.\d%"):
        compare_updates(began, ordinary, ordinary, Weights(flipped(0.02), other))
    with pytest.raises(CannotRecord, match=r"its gradients by [01]\.\d% and its update by 1\d\d\.\d%"):
        compare_updates(began, ordinary, ordinary, Weights(flipped(0.4), near))


def test_what_adam_keeps_of_the_gradient_is_looked_at_with_the_weights():
    _job, worker = worker_of(make_task(optimizer=partial(torch.optim.AdamW, lr=0.1)), fuse=False)
    before = Before(worker)
    worker.plain(torch.randn(4, 6)).square().sum().backward()
    gradients = [parameter.grad.clone() for _, parameter in worker.updater.named]
    worker.updater.apply()
    began, now = before.began(), before.now()
    assert apart(began.gradients, [torch.zeros(())] * len(gradients)) == 0.0
    for kept, gradient in zip(now.gradients, gradients, strict=True):
        torch.testing.assert_close(kept, 0.1 * gradient)


def test_what_was_tried_before_the_first_step_leaves_no_trace():
    _job, worker = worker_of(make_task(optimizer=partial(torch.optim.AdamW, lr=0.1)), fuse=False)
    before, start = Before(worker), worker.weights()
    for _ in range(2):
        worker.plain(torch.randn(4, 6)).square().sum().backward()
        worker.updater.apply()
    assert apart(before.now().values, list(start.values())) > 0.1
    before.restore()
    assert apart(before.now().values, list(start.values())) == 0.0
    assert not any(value.any() for state in worker.updater.optimizer.state.values() for value in state.values())


def test_looking_at_the_weights_between_replays_runs_what_is_pending():
    task = make_task(batch=10)
    _worker, expected = train_ordinary(task)
    _captured, losses = train_captured(task, 4, look_at=(3, 7, 12))
    assert losses == pytest.approx(expected, rel=1e-5)


def test_clipping_happens_inside_the_recording():
    task = make_task()
    worker, _ = train_ordinary(task, clip=0.05)
    captured, _ = train_captured(task, 4, clip=0.05)
    for name, value in worker.weights().items():
        torch.testing.assert_close(captured.weights()[name], value, rtol=1e-5, atol=1e-6)


def test_a_schedule_that_moves_more_than_the_rate_ends_replaying():
    """OneCycleLR moves momentum too, which a recording holds as a constant."""

    def cycle(optimizer, total):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)

    task = make_task(schedule=cycle)
    _worker, expected = train_ordinary(task)
    captured, losses = train_captured(task, 4)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert captured.figures()["captured"]["reason"] == "the schedule changes more than the learning rate"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimizer": partial(torch.optim.RMSprop, lr=0.1)}, "torch has no recordable RMSprop"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)}, "dampening=0.5"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.1, foreach=True)}, "set not to run fused"),
        ({"samples": 8}, "smaller than one update's batches"),
        ({"model": partial(nn.Embedding, 10, 3, sparse=True)}, "sparse gradients"),
    ],
)
def test_reasons_not_to_record(changes, reason):
    job, worker = worker_of(make_task(**changes))
    assert reason in why_not(worker, data_of(job), job)


def test_data_on_the_host_is_a_reason():
    job, worker = worker_of(make_task())
    assert "not on the GPU" in why_not(worker, None, job)
    assert "talk to other ranks" in why_not(SimpleNamespace(not_captured="they talk to other ranks"), None, job)


def test_an_ordinary_job_can_be_recorded():
    job, worker = worker_of(make_task())
    assert why_not(worker, data_of(job), job) is None
