"""The parts of torch that are not public: whether this torch still has them, and what is done without.

What is private may go or change with any version. So each part is tried on a few numbers before it is counted on; one
that is not there, or does not do what it did, is left out. The caller's side of a fit looks and tells the ranks, so that
all of them leave out the same parts, and says so in one note of the record.

    caller    try every part  ->  note: "torch 2.99.0 ..."  ->  names of those left out  ->  every rank

docs/dependencies.md says what each part is for. Shared memory is a part too: world/shm/trial.py tries it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..data.process_state import alone

TESTED = (2, 15)  # the newest torch that the whole suite has passed with: `make test-newest`


class Part:
    """One private part. `find` gives it back once it has done what is expected of it, and raises if it does not."""

    def __init__(self, name: str, instead: str, find: Callable[[], Any]):
        self.name, self.instead, self._find = name, instead, find
        self._looked, self._found = False, None
        self.problem = ""

    @property
    def found(self) -> Any:
        """The part, or None where this torch is without it."""
        if not self._looked:
            self.look()
        return self._found

    def look(self) -> bool:
        """Try it now; returns whether it is missing. Meanwhile other threads see what was known before."""
        found, said = None, ""
        try:
            with alone(), torch.random.fork_rng(devices=[]):  # layers that are made draw their first weights
                found = self._find()
        except Exception as problem:
            said = str(problem).strip().partition("\n")[0] or type(problem).__name__
        self._found, self.problem, self._looked = found, said, True
        return bool(said)

    def leave_out(self) -> None:
        self._looked, self._found = True, None


def _ones(*shape: int) -> torch.Tensor:
    """Whatever dtype and device the caller has made the default."""
    return torch.ones(shape, dtype=torch.float32, device="cpu")


def _expect(found: torch.Tensor, numbers: list[float]) -> None:
    if found.tolist() != numbers:
        raise RuntimeError(f"gave {found.tolist()} instead of {numbers}")


def _fused_sgd() -> Callable[..., None]:
    weight, gradient = _ones(2), _ones(2)
    optimizer = torch.optim.SGD([weight.clone().requires_grad_()], lr=0.5)
    has_step_hooks(optimizer)
    torch._fused_sgd_(
        [weight], [gradient], [],
        weight_decay=0.0, momentum=0.0, lr=0.5, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip
    _expect(weight, [0.5, 0.5])
    return torch._fused_sgd_


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody wants to know of every step."""
    from torch.optim import optimizer as optimizers

    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or optimizers._global_optimizer_pre_hooks
        or optimizers._global_optimizer_post_hooks
    )


def _direct_product() -> Callable[..., torch.Tensor] | None:
    if not torch.backends.mkldnn.is_available():
        return None  # a machine without oneDNN lacks nothing that was there before
    direct = torch.ops.mkldnn._linear_pointwise
    _expect(direct(_ones(1, 2), _ones(3, 2), _ones(3), "none", [], "")[0], [3.0, 3.0, 3.0])
    return direct  # type: ignore[no-any-return]


def _own_kernels() -> Callable[[dict[str, Callable[..., Any]]], Callable[[], None]]:
    def put_in_place(kernels: dict[str, Callable[..., Any]]) -> Callable[[], None]:
        """These functions do what torch's kernels of their names did, on CPU, until the result is called."""
        library = torch.library.Library("aten", "IMPL")
        take_back = library._destroy
        with warnings.catch_warnings():  # torch says that there was a kernel before
            warnings.simplefilter("ignore")
            for name, kernel in kernels.items():  # over those of other fits too
                library.impl(name, kernel, "CPU", allow_override=True)
        return take_back

    asked: list[tuple[int, ...]] = []

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        asked.append(tuple(left.shape))
        return torch.mm(left, right, out=left.new_empty(0))

    left, right = _ones(1, 3), _ones(3, 1)
    take_back = put_in_place({"mm": product})
    try:
        _expect(torch.mm(left, right)[0], [3.0])
    finally:
        take_back()
    _expect(torch.mm(left, right)[0], [3.0])
    if (1, 3) not in asked:
        raise RuntimeError("were not asked for a product")
    return put_in_place


def _bucket_order() -> bool:
    from torch.distributed import Reducer

    for name in ("prepare_for_forward", "prepare_for_backward", "_rebuild_buckets"):
        getattr(Reducer, name)
    return True


def _dispatch_mode() -> type:
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


def _versions() -> Callable[[torch.Tensor], int]:
    tensor = _ones(1)
    before = tensor._version
    tensor.add_(1)
    if tensor._version == before:
        raise RuntimeError("an addition in place left the version as it was")
    return lambda tensor: tensor._version


def _convolution_backward() -> Callable[..., Any]:
    backward, ones = torch.ops.aten.convolution_backward, _ones(1, 1, 2)
    made = backward(ones, ones, _ones(1, 1, 1), [1], [1], [0], [1], False, [0], 1, [True, True, False])
    _expect(torch.cat([made[0].flatten(), made[1].flatten()]), [1.0, 1.0, 2.0])
    return backward


def _parameter_hooks() -> Callable[[nn.Parameter], dict[str, Any]]:
    def hooks_of(parameter: nn.Parameter) -> dict[str, Any]:
        """What is called with a parameter's gradient, by the method that registers it."""
        return {
            "register_hook": parameter._backward_hooks,
            "register_post_accumulate_grad_hook": parameter._post_accumulate_grad_hooks,  # type: ignore[attr-defined]
        }

    parameter = nn.Parameter(_ones(1))
    for register in hooks_of(parameter):
        getattr(parameter, register)(id)
    for register, hooks in hooks_of(parameter).items():
        if list(hooks.values()) != [id]:
            raise RuntimeError(f"{register} keeps its hooks elsewhere")
    return hooks_of


def _module_tables() -> bool:
    layer, weight = nn.Linear(1, 1, bias=False), 3 * _ones(1, 1)
    layer._parameters["weight"] = weight  # type: ignore[assignment]
    layer._buffers["other"] = weight
    if layer.weight is not weight or layer.other is not weight:
        raise RuntimeError("a tensor put into a module's table is not the module's")
    return True


def _tree_leaves() -> Callable[[Any], list[Any]]:
    from torch.utils import _pytree

    if _pytree.tree_leaves({"one": [1, (2, 3)]}) != [1, 2, 3]:
        raise RuntimeError("does not find what lies in a nest")
    return _pytree.tree_leaves


FUSED_SGD = Part("SGD as one kernel", "torch's own step is used", _fused_sgd)
DIRECT_PRODUCT = Part("oneDNN's direct product", "plain products are used", _direct_product)
OWN_KERNELS = Part("kernels in place of torch's", "large products are MKL's", _own_kernels)
BUCKET_ORDER = Part("the order of DDP's buckets", "a resumed ddp run may differ in the last bits", _bucket_order)
DISPATCH_MODE = Part("dispatch modes", "images keep their channels first", _dispatch_mode)
VERSIONS = Part(
    "the versions of tensors", "gradients are copied into shared memory, and no model can be cut", _versions
)
CONVOLUTION_BACKWARD = Part(
    "the backward pass of a convolution", "its weight gradients are made at once", _convolution_backward
)
PARAMETER_HOOKS = Part(
    "the hooks on parameters",
    "those of a model that is handed over ready-made do not reach the ranks",
    _parameter_hooks,
)
MODULE_TABLES = Part("the tables of modules", "data_parallel is refused", _module_tables)
TREE_LEAVES = Part("a look into nests", "fsdp gathers the model as a whole", _tree_leaves)
PARTS = (
    FUSED_SGD,
    DIRECT_PRODUCT,
    OWN_KERNELS,
    BUCKET_ORDER,
    DISPATCH_MODE,
    VERSIONS,
    CONVOLUTION_BACKWARD,
    PARAMETER_HOOKS,
    MODULE_TABLES,
    TREE_LEAVES,
)


def _batchnorms() -> tuple[type[nn.Module], ...]:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    common = set(kinds[0].__mro__).intersection(*(kind.__mro__ for kind in kinds)) - set(nn.InstanceNorm1d.__mro__)
    return (*kinds, *common)


BATCHNORMS = _batchnorms()  # torch's, and whatever others derive from the class, of no public name, that these share


def look() -> None:
    """Try every part."""
    for part in PARTS:
        part.look()


def missing() -> tuple[str, ...]:
    """The names of the parts that were tried in vain, for the ranks to leave out."""
    return tuple(part.name for part in PARTS if part.problem)


def leave_out(names: Iterable[str]) -> None:
    """A rank's side: do without the parts that its caller does without."""
    for part in PARTS:
        if part.name in names:
            part.leave_out()


def untested() -> bool:
    """Whether this torch is newer than any the package was tested with."""
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return version is not None and (int(version[1]), int(version[2])) > TESTED


def note(others: Sequence[Part] = ()) -> str | None:
    """One sentence for the record on a torch that is newer than tested, or that lacks something; else None."""
    lacking = [part for part in (*PARTS, *others) if part.problem]
    if not lacking and not untested():
        return None
    newest = ".".join(map(str, TESTED))
    said = [f"torch {torch.__version__} is newer than {newest}, the newest tested"] if untested() else []
    said += [f"torch {torch.__version__} lacks {part.name} ({part.problem}): {part.instead}" for part in lacking]
    return "; ".join(said)
