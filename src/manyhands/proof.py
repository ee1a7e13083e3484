"""The proof before the promise: would the parts of a batch train this model as the whole batch does?

A strategy that promises the weights of `single` lets every rank compute on a part of each batch and draw its own random
numbers. Whether that comes to the same is tried before the start, on a copy of the model and a few samples of the first
batch, because no list of layer classes knows what people write:

    another seed                   another loss             random numbers are drawn: dropout, sampling, skipped layers
    the same pass twice            another loss, or         something is kept between batches; after a part of the batch
                                   other buffers            the same as after the whole: every rank keeps it alike
    the batch, and its two parts   another loss or          the loss is no mean over samples, or a sample's output depends
                                   gradient                 on its neighbours

A forward pass that branches on the contents of a tensor may go another way with any batch, so more batches are tried then.
What differs in float32 by more than rounding explains is tried again in float64. BatchNorm is known by its class and may be
joined over ranks (sync_batchnorm), so it runs with fixed statistics here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .data import nest
from .data.generators import drawn_from, generators, seeded
from .model.trace import title
from .torch_parts import BATCHNORMS

if TYPE_CHECKING:
    from .job import Job

SAMPLES = ((0.05, 16), (0.25, 8), (2.0, 5))  # how many are tried where a pass over two takes at most so many seconds
BRANCH_SAMPLES, BRANCH_SECONDS = 48, 1.0  # where the forward pass branches on what it is given
NOISE, DOUBT = 2e-6, 1e-3  # differences that float32 explains; those that nothing but a difference explains
NOISE_64 = 1e-7


@dataclass(frozen=True)
class Proof:
    """What was found. Sentences say what is wrong and where; None means that nothing was."""

    random: str | None = None  # where random numbers are drawn that change the loss
    mixed: str | None = None  # why the parts of a batch do not come to the same as the whole
    state: str | None = None  # what the forward pass keeps between batches
    follows_batch: bool = False  # ... and that it depends on the samples
    divides: str | None = None  # why a part of a batch cannot be computed at all
    writes: tuple[str, ...] = ()  # parameters that the forward pass writes
    unused: frozenset[str] = frozenset()  # trained parameters that some of the passes did not reach
    reseeds: bool = False  # Python's or numpy's generator is drawn from: it must be seeded for each step
    unchecked: str | None = None  # why there is no proof


@dataclass(frozen=True)
class Samples:
    """A few samples as a rank would get them."""

    input: Any
    target: Any
    keys: Tensor
    count: int


@dataclass
class Pass:
    """One forward and backward pass."""

    loss: float
    gradients: dict[str, Tensor | None]
    moved: set[str]  # generators that were drawn from
    outputs: dict[str, Tensor] = field(default_factory=dict)  # of modules, where asked for


Take = Callable[[Sequence[int]], Samples]  # some of the samples that were read, by their places


def prove(job: Job, read: Callable[[int], tuple[int, Take]], seconds: float) -> Proof:
    """Try the job's model and loss, and add to what its proof says so far.

    `read` reads so many samples if there are as many. `seconds` of processor time are what a pass over two of them takes.
    """
    known = job.proof
    try:
        trial, asked = Trial(job), _Asked()
        if seconds > SAMPLES[0][0]:  # a first pass may have loaded half a library
            seconds = _timed(Trial(job), read(2)[1]([0, 1]))
        affordable = [count for limit, count in SAMPLES if seconds <= limit]
        if not affordable:
            return replace(known, unchecked=f"a pass over two samples takes {seconds:.1f} s")
        total, take = read(min(affordable[0], max(job.task.batch_size, 2)))
        whole = take(range(total))
        first = trial.run(whole, mode=asked)
    except Exception as problem:  # the ranks will name step and phase
        return replace(known, unchecked=f"{type(problem).__name__}: {problem}".splitlines()[0])
    known = replace(known, unused=known.unused | _unused(first))
    known = _find_state(job, trial, whole, first, known)
    known = _find_randomness(job, trial, whole, first, known)
    if total < 2 or known.random:  # then nothing can be compared, and nothing is promised
        return known
    known = _compare_parts(job, trial, whole, _halves(take, range(total)), known, first)
    if asked.contents and not known.mixed and not known.state:
        known = _compare_more(job, trial, *read(BRANCH_SAMPLES), known)
    return known


def _timed(trial: Trial, samples: Samples) -> float:
    began = process_time()
    trial.run(samples)
    return process_time() - began


def _halves(take: Take, places: Sequence[int]) -> list[Samples]:
    """In two parts: unequal, and even where it can be, for some losses take samples in pairs."""
    first = 2 * (len(places) // 6) or len(places) // 2
    return [take(places[:first]), take(places[first:])]


class Trial:
    """A copy of the model with its loss, to run passes on."""

    def __init__(self, job: Job, double: bool = False):
        self.model, self.loss_of, self.augment = job.copies()
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, BATCHNORMS):
                with suppress(Exception):  # a scripted one keeps its own
                    module.forward = partial(_with_fixed_statistics, module)  # type: ignore[method-assign]
        self.place = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.double = double
        if double:
            self.model._apply(_widened)
        self.seed = job.task.seed

    def run(
        self,
        samples: Samples,
        seed: int = 0,
        mode: AbstractContextManager[Any] | None = None,
        watch: bool = False,
        backward: bool = True,
    ) -> Pass:
        outputs: dict[str, Tensor] = {}
        with seeded(self.seed + seed), mode or nullcontext(), _outputs(self.model, outputs) if watch else nullcontext():
            before = generators()
            input, target = (nest.each(value, self._own) for value in (samples.input, samples.target))
            if self.augment is not None:
                input = self.augment(input, samples.keys.to(self.place))
                if watch:
                    outputs["augment"] = next(nest.leaves(input)).detach().clone()
            loss = self.loss_of(self.model(input), target)
            if backward and loss.requires_grad:
                loss.backward()
            after = generators()
        named = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        gradients = {name: _dense(parameter.grad) for name, parameter in named} if backward else {}
        for _, parameter in named:
            parameter.grad = None
        return Pass(float(loss.detach()), gradients, drawn_from(before, after), outputs)

    def _own(self, tensor: Tensor) -> Tensor:
        """A copy, because a model may write into what it is given."""
        tensor = tensor.detach().to(self.place, copy=True)
        return _widened(tensor) if self.double else tensor

    def tensors(self) -> dict[str, Tensor]:
        found = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: tensor.detach().clone() for name, tensor in found}


# ---------------------------------------------------------------- what is kept between batches


def _find_state(job: Job, trial: Trial, whole: Samples, first: Pass, known: Proof) -> Proof:
    """Compare what the model holds, and what it answers, before and after a pass."""
    original = {name: t.detach() for name, t in [*job.model.named_parameters(), *job.model.named_buffers()]}
    held = trial.tensors()
    changed = [name for name in held if not torch.equal(held[name], original[name].to(held[name].device))]
    parameters = dict(trial.model.named_parameters())
    known = replace(known, writes=tuple(name for name in changed if name in parameters))
    again = trial.run(whole, backward=False)
    if not changed and _same_loss(first, again):
        return known
    what = f'"{changed[0]}"' if changed else "an attribute of the model or of the loss"
    return replace(known, state=f"the forward pass changes {what}, which later batches see")


def _follows_batch(job: Job, part: Trial, whole: Samples) -> bool:
    """Whether the state after a part of a batch differs from the state after the whole one."""
    fresh = Trial(job)
    fresh.run(whole)
    after_part, after_whole = part.tensors(), fresh.tensors()
    if any(not _close(after_part[name], after_whole[name]) for name in after_whole):
        return True
    return not _same_loss(part.run(whole, backward=False), fresh.run(whole, backward=False))


# ---------------------------------------------------------------- random numbers


def _find_randomness(job: Job, trial: Trial, whole: Samples, first: Pass, known: Proof) -> Proof:
    fresh = Trial(job) if known.state else trial
    second = fresh.run(whole, seed=1, backward=bool(first.moved))
    known = replace(known, unused=known.unused | _unused(second))
    if not first.moved and (known.state or _same_loss(first, second)):
        return known
    if first.moved == {"torch"} and _same_loss(first, second):
        # Numbers were drawn and changed nothing: a rare event, or one that cannot happen (a layer dropped with
        # probability 0). The smallest and the largest number that can be drawn show which.
        passes = [(Trial(job) if known.state else trial).run(whole, mode=_Forced(value)) for value in (0.0, 1.0)]
        known = replace(known, unused=known.unused.union(*map(_unused, passes)))
        if not any(found.moved for found in passes) and all(_same_loss(first, found) for found in passes):
            return known
    place = _drawing_module(job, whole)
    return replace(known, random=f"random numbers (dropout and the like) are drawn in {place}")


class _Forced(TorchFunctionMode):
    """Uniform numbers come out as the smallest, or as the largest, that there is; the generator is left alone."""

    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        share = min(self.share, 1 - 2**-20)
        if function is torch.rand:
            return torch.zeros(*args, **{key: value for key, value in kwargs.items() if key != "generator"}).fill_(
                share
            )
        if function is torch.rand_like:
            return torch.zeros_like(*args, **kwargs).fill_(share)
        if function is Tensor.uniform_:
            low, high = ([*args[1:], *kwargs.values(), 0.0, 1.0])[:2] if len(args) + len(kwargs) > 2 else (0.0, 1.0)
            return args[0].fill_(low + share * (high - low))
        if function is torch.bernoulli and len(args) == 1 and not kwargs:
            return (args[0] > (1.0 - share)).to(args[0].dtype)
        return function(*args, **kwargs)


def _drawing_module(job: Job, whole: Samples) -> str:
    """The innermost module that draws first."""
    trial, found, begun = Trial(job), [], []

    def entered(module: nn.Module, *_: Any) -> None:
        begun.append(generators())

    def left(module: nn.Module, *_: Any, name: str) -> None:
        if drawn_from(begun.pop(), generators()):
            found.append(title(trial.model, name))

    with _hooked(trial.model, entered, left), suppress(Exception):
        trial.run(whole)
    return found[0] if found else "the loss"


# ---------------------------------------------------------------- the parts of a batch


def _compare_parts(
    job: Job, trial: Trial, whole: Samples, parts: Sequence[Samples], known: Proof, first: Pass
) -> Proof:
    trials = [Trial(job), Trial(job)] if known.state else [trial, trial]
    try:
        passes = [own.run(samples) for own, samples in zip(trials, parts, strict=True)]
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return replace(known, divides=f"{parts[0].count} of {whole.count} samples cannot be computed alone: {reason}")
    known = replace(known, unused=known.unused.union(*map(_unused, passes)))
    if known.state:
        known = replace(known, follows_batch=_follows_batch(job, trials[0], whole))
    shares = [part.count / whole.count for part in parts]
    apart = _difference(first, list(zip(shares, passes, strict=True)))
    if apart <= NOISE or not _really_apart(job, whole, parts, shares, apart):
        return known
    return replace(known, mixed=_why_mixed(job, whole, parts, shares, first, passes))


def _compare_more(job: Job, trial: Trial, total: int, take: Take, known: Proof) -> Proof:
    """Other batches, small ones: of those, more go different ways. Their losses alone show it."""
    began = process_time()
    for start in range(0, total - 2, 3):
        places = range(start, min(start + 6, total))
        whole, parts = take(places), _halves(take, places)
        try:
            first, *passes = [trial.run(samples, backward=False) for samples in (whole, *parts)]
        except Exception:
            continue  # parts that small are not what ranks get
        shares = [part.count / whole.count for part in parts]
        apart = _difference(replace(first, gradients={}), list(zip(shares, passes, strict=True)))
        if apart > NOISE and _really_apart(job, whole, parts, shares, apart):
            return replace(known, mixed=_why_mixed(job, whole, parts, shares, first, passes))
        if process_time() - began > BRANCH_SECONDS:
            break
    return known


class _Asked(TorchFunctionMode):
    """Notes whether the forward pass asks for the contents of a tensor, which it can then branch on."""

    QUESTIONS = frozenset({"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "nonzero", "unique"})

    def __init__(self) -> None:
        super().__init__()
        self.contents = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.contents = self.contents or getattr(function, "__name__", "") in self.QUESTIONS
        return function(*args, **(kwargs or {}))


def _really_apart(job: Job, whole: Samples, parts: Sequence[Samples], shares: list[float], apart: float) -> bool:
    """Whether float64 sees the difference too. A model that cannot be computed so is judged by its size alone."""
    try:
        first, *passes = [Trial(job, double=True).run(samples) for samples in (whole, *parts)]
    except Exception:
        return apart > DOUBT
    precise = _difference(first, list(zip(shares, passes, strict=True)))
    return precise > NOISE_64 and precise > apart / 10


def _why_mixed(
    job: Job, whole: Samples, parts: Sequence[Samples], shares: list[float], first: Pass, passes: list[Pass]
) -> str:
    """Where the parts go their own way: in the augmentation, in a module, in the loss or in a gradient."""
    together = Trial(job).run(whole, watch=True).outputs
    apart = [Trial(job).run(part, watch=True).outputs for part in parts]
    for name, output in together.items():
        if len(output) != whole.count or not all(name in own for own in apart):
            continue
        joined = torch.cat([own[name] for own in apart]) if len({own[name].shape[1:] for own in apart}) == 1 else output
        if joined.shape == output.shape and not _close(output, joined, 1e-4):
            if name == "augment":
                return "task.augment mixes samples of a batch, and every rank has a part of each batch"
            where = title(job.model, name)
            return f"the output of {where} for a sample depends on the other samples of its batch"
    mean = sum(share * result.loss for share, result in zip(shares, passes, strict=True))
    if abs(first.loss - mean) <= NOISE * max(abs(first.loss), abs(mean)):
        return "the gradient of a batch is not the mean over its samples (a hook on a parameter, say)"
    return (
        f"the loss of a batch is not the mean over its samples ({first.loss:.6g} for {whole.count} samples, "
        f"{mean:.6g} from their parts): a sum, class weights, padding or pairs of samples weigh parts differently; "
        "use a loss that averages over samples"
    )


# ---------------------------------------------------------------- small pieces


def _difference(one: Pass, others: list[tuple[float, Pass]]) -> float:
    """How far a pass is from the weighted sum of others: the largest relative difference of loss and gradients."""
    loss = sum(share * other.loss for share, other in others)
    apart = abs(one.loss - loss) / max(abs(one.loss), abs(loss), 1e-12)
    if not np.isfinite(apart):
        return 0.0 if not np.isfinite(one.loss) else float("inf")  # a loss that is not finite ends the fit anyway
    largest = max((float(g.abs().max()) for g in one.gradients.values() if g is not None and g.numel()), default=0.0)
    for name, gradient in one.gradients.items():
        terms = [share * g for share, other in others if (g := other.gradients.get(name)) is not None]
        if gradient is None and not terms:
            continue
        mine = torch.zeros_like(terms[0]) if gradient is None else gradient
        total = sum(terms, torch.zeros_like(mine))
        if mine.numel():
            scale = max(float(mine.abs().max()), 1e-3 * largest, 1e-30)
            apart = max(apart, float((mine - total).abs().max()) / scale)
    return apart


def _same_loss(one: Pass, other: Pass) -> bool:
    return _difference(replace(one, gradients={}), [(1.0, other)]) <= NOISE


def _unused(found: Pass) -> frozenset[str]:
    return frozenset(name for name, gradient in found.gradients.items() if gradient is None)


def _close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> bool:
    if one.shape != other.shape:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    scale = max(float(one.abs().max()) if one.numel() else 0.0, 1e-30)
    return not one.numel() or float((one - other).abs().max()) <= tolerance * scale


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _widened(tensor: Tensor) -> Tensor:
    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(tensor.dtype)
    return tensor.to(wider) if wider is not None else tensor


def _with_fixed_statistics(module: Any, input: Tensor) -> Tensor:
    if not module.training:
        return type(module).forward(module, input)
    mean, variance = input.new_zeros(input.shape[1]), input.new_ones(input.shape[1])
    return F.batch_norm(input, mean, variance, module.weight, module.bias, False, 0.0, module.eps)


@contextmanager
def _hooked(model: nn.Module, entered: Callable[..., Any], left: Callable[..., Any]) -> Iterator[None]:
    """Call `entered` and `left` around every module's forward, children before their parents."""
    handles = []
    for name, module in model.named_modules():
        with suppress(Exception):  # scripted modules take no hooks
            handles.append(module.register_forward_pre_hook(entered))
            handles.append(module.register_forward_hook(partial(left, name=name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _outputs(model: nn.Module, into: dict[str, Tensor]) -> Iterator[None]:
    """Keep the first tensor of every module's first output."""

    def left(module: nn.Module, input: Any, output: Any, name: str) -> None:
        tensor = nest.first(output)
        if tensor is not None and tensor.dim() and name not in into:
            into[name] = tensor.detach().clone()

    with _hooked(model, lambda *_: None, left):
        yield
