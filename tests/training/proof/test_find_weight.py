"""What a loss is a mean over is found by trying it, and only where it is not samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import manyhands as mh
from manyhands.strategies.job import Job, StepSettings
from manyhands.training.build import build
from manyhands.training.proof.counted import Counted, forms
from manyhands.training.proof.mean_losses import MeanLosses
from manyhands.training.proof.probe import probe
from tests.conftest import quick_fit

WORDS, LENGTH, SAMPLES = 7, 5, 20


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x)).transpose(1, 2)


def sentences(pad: int = -100) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(1, WORDS, (SAMPLES, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (SAMPLES, 1), generator=generator)
    return x, x.masked_fill(torch.arange(LENGTH) >= lengths, pad)


class Rows(torch.utils.data.Dataset):
    def __init__(self, targets: Any) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        own = {k: v[index] for k, v in self.targets.items()} if isinstance(self.targets, dict) else self.targets[index]
        return sentences()[0][index], own


def probed(loss: Any, train: Any = None, divided: bool = True, **changes: Any) -> Job:
    recipe: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.1), "batch_size": 8}
    task = mh.Task(**{"model": Tagger, "train": train or sentences(), "loss": loss, **recipe, **changes})
    job = build(task, StepSettings())
    probe(job, [torch.device("cpu")], divided=divided)
    return job


def own_mean(output: Tensor, target: Tensor, pad: int = -100) -> Tensor:
    each = F.cross_entropy(output, target.clamp(min=0), reduction="none") * (target != pad)
    return each.sum() / (target != pad).sum()


WEIGHTS = torch.tensor([0.5, 2, 1, 1, 3, 1, 0.1])
FOUND: dict[str, tuple[Any, Any, str]] = {
    "the function": (F.cross_entropy, None, "target != -100"),
    "a module": (nn.CrossEntropyLoss(), None, "target != -100"),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), None, "target != -100"),
    "a partial": (partial(F.cross_entropy, ignore_index=0), sentences(0), "target != 0"),
    "a lambda": (lambda o, t: F.nll_loss(F.log_softmax(o, 1), t), None, "target != -100"),
    "scaled": (lambda o, t: 2 * F.cross_entropy(o, t), None, "target != -100"),
    "twice": (lambda o, t: F.cross_entropy(o, t) + 0.4 * F.cross_entropy(2 * o, t), None, "target != -100"),
    "shifted": (lambda o, t: F.cross_entropy(o[:, :, :-1], t[:, 1:]), None, "target[..., 1:] != -100"),
    "weights": (nn.CrossEntropyLoss(weight=WEIGHTS), None, "class weights of target"),
    "one of several": (
        lambda o, t: F.cross_entropy(o, t["tags"]), Rows({"tags": sentences()[1], "other": torch.arange(SAMPLES)}),
        'target["tags"] != -100',
    ),
    "rows without padding so far": (F.cross_entropy, Rows(sentences()[0]), "target != -100"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("divided", [False, True])
def test_found(name: str, divided: bool) -> None:
    """The same under single, whose steps have parts where it accumulates, as where ranks divide them."""
    loss, train, words = FOUND[name]
    job = probed(loss, train, divided)
    assert str(job.weight) == words
    assert job.proof.mixed is None


NOT_NEEDED: dict[str, tuple[Any, Any]] = {
    "nothing is ignored": (F.cross_entropy, (sentences()[0], sentences()[0])),
    "rows alike": (F.cross_entropy, (sentences()[0], sentences()[0].index_fill(1, torch.tensor([0, 1]), -100))),
    "a class per sample": (lambda o, t: F.cross_entropy(o.mean(2), t), Rows(sentences()[0][:, 0])),
    "a sum over samples": (lambda o, t: F.cross_entropy(o, t, reduction="sum") / len(t), None),
    "probabilities": (lambda o, t: F.cross_entropy(o, F.one_hot(t.clamp(min=0), WORDS).mT.float()), None),
}


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_samples_will_do(name: str) -> None:
    """Nothing is counted, so a step costs nothing more."""
    job = probed(*NOT_NEEDED[name])
    assert job.weight is None
    assert job.proof.mixed is None


def cross_entropy_and_more(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target) + output.pow(2).mean()


def two_means(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target) + F.cross_entropy(output[:, :, 0], target[:, 0].clamp(min=0))


def counted_anew(output: Tensor, target: Tensor) -> Tensor:
    """Class weights out of each batch: rare values in the samples tried first make them all alike."""
    return F.cross_entropy(output.mean(2), target[:, 0], weight=torch.bincount(target[:, 0], minlength=WORDS) + 1.0)


@pytest.mark.parametrize("loss", [cross_entropy_and_more, two_means, counted_anew])
def test_what_no_form_fits_is_not_promised(loss: Any) -> None:
    job = probed(loss)
    assert job.weight is None
    assert "not the mean over its samples" in str(job.proof.mixed)
    assert "weight=lambda target: ..." in str(job.proof.mixed)


@pytest.mark.parametrize(("pad", "line"), [(-100, "target != -100"), (0, "target != 0")])
def test_a_line_to_copy(pad: int, line: str) -> None:
    """Where people divide by themselves nothing is seen, but a form can still be tried on the losses of the parts."""
    job = probed(partial(own_mean, pad=pad), sentences(pad))
    assert f"with weight=lambda target: ({line}).sum() these samples come to the same" in str(job.proof.mixed)


def test_a_loss_inside_the_model_needs_the_name_of_its_target() -> None:
    class Own(Tagger):
        def forward(self, ids: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
            return {"loss": F.cross_entropy(super().forward(ids), labels)}

    x, y = sentences()
    rows = [{"ids": a, "labels": b} for a, b in zip(x, y, strict=True)]
    job = probed(None, rows, model=Own)  # its first batch has a quarter of its tokens in a quarter of its samples
    assert 'name the target (task.target, such as "labels")' in str(job.proof.mixed)
    assert str(probed(None, rows, model=Own, target="labels").weight) == "labels != -100"


def test_dropout_hides_nothing() -> None:
    job = probed(F.cross_entropy, model=lambda: nn.Sequential(Tagger(), nn.Dropout(0.5)))
    assert str(job.weight) == "target != -100"


def test_evaluation_weighs_batches_by_units() -> None:
    """Batches of a few samples, some of them all padding, come to the loss of all at once."""
    x, y = sentences()
    y[8:12] = -100
    task = mh.Task(
        model=Tagger, train=(x, y), test=(x, y), loss=F.cross_entropy, optimizer=partial(torch.optim.SGD, lr=0.1)
    )
    run = quick_fit(task)
    assert run.weight == "target != -100"
    model = Tagger()
    model.load_state_dict(run.weights)
    expected = float(F.cross_entropy(model(x), y).detach())
    assert run.test is not None
    assert run.test["loss"] == pytest.approx(expected, rel=1e-5)
    small = task.replace(eval_batch_size=2, batch_size=2)
    assert mh.evaluate(small, run.weights)["loss"] == pytest.approx(expected, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_forms_divide_by_what_torch_divides_by(data: st.DataObject) -> None:
    """Any shape, any ignored number, with and without class weights: the form gives the denominator of the call."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ignore = data.draw(st.sampled_from([-100, -1, 0, 3, 255]))
    weights = data.draw(st.none() | st.just(WEIGHTS[:4]))
    entries = data.draw(
        st.lists(st.sampled_from([0, 1, 2, ignore]), min_size=(n := torch.Size(shape).numel()), max_size=n)
    )
    target = torch.tensor(entries).reshape(shape)
    scores = torch.randn(shape[0], 4, *shape[1:])
    with MeanLosses() as watched:
        found = F.cross_entropy(scores, target, weights, ignore_index=ignore)
    form = next(iter(forms({"a": target}, ignore, weights)))
    total = F.cross_entropy(scores, target, weights, ignore_index=ignore, reduction="sum")
    assert float(form({"a": target})) == pytest.approx(watched.calls[0].units)
    if watched.calls[0].units:
        assert float(total) / float(form({"a": target})) == pytest.approx(float(found), rel=1e-4, abs=1e-6)
    assert float(torch.cat(list(form.per_sample({"a": target}))).sum()) == pytest.approx(watched.calls[0].units)


def test_forms_in_words_and_as_code() -> None:
    form = Counted(("labels",), ignore=-1, shifted=True, name="")
    assert str(form) == 'target["labels"][..., 1:] != -1'
    assert form.line() == 'weight=lambda target: (target["labels"][..., 1:] != -1).sum()'
