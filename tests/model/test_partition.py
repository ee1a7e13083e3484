"""A cut model is the model: outputs, gradients, names and statistics, bit for bit."""

from __future__ import annotations

import copy
import pickle
import sys
import time
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from manyhands.data import nest
from manyhands.errors import BadInput, Refused
from manyhands.model import Cut, Stage, cut, tracer
from manyhands.model.partition import _cheapest
from manyhands.model.seams import Seam
from manyhands.model.torch_internals import VERSIONS, Part

sys.path.insert(0, str(Path(__file__).parent))
from zoo import ZOO, Attention, Gate, Gated, make, mlp


def slopes(output: Any) -> list[Tensor]:
    return [torch.linspace(0.5, 1.5, leaf.numel()).view(leaf.shape) for leaf in floats(output)]


def floats(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if leaf.requires_grad]


def run_whole(model: nn.Module, input: Any) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(7)
    model.zero_grad()
    output = model(input)
    torch.autograd.backward(floats(output), slopes(output))
    return output, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def run_stages(pieces: Cut, stages: Sequence[Stage], input: Any) -> tuple[Any, dict[str, Tensor]]:
    """As ranks do it: what arrives is detached, backward starts from the gradients that come back."""
    torch.manual_seed(7)
    arriving, passed = pieces.flatten(input), []
    for stage in stages:
        stage.zero_grad()
        leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in arriving]
        arriving = stage(*leaves)
        passed.append((leaves, arriving))
    output = pieces.assemble(arriving)
    gradients: list[Tensor | None] = []
    for leaves, leaving in reversed(passed):
        if leaving is arriving:
            torch.autograd.backward(floats(output), slopes(output))
        else:
            back = [(t, g) for t, g in zip(leaving, gradients, strict=True) if g is not None and t.requires_grad]
            torch.autograd.backward([t for t, _ in back], [g for _, g in back])
        gradients = [leaf.grad for leaf in leaves]
    total: dict[str, Tensor] = {}
    for stage in reversed(stages):  # as autograd does: the later use first
        for local, parameter in stage.named_parameters():
            if parameter.grad is not None:
                name = stage.names[local]
                total[name] = total[name] + parameter.grad if name in total else parameter.grad
    return output, total


def assert_same(expected: Any, found: Any) -> None:
    one, two = pytree.tree_flatten(expected), pytree.tree_flatten(found)
    assert one[1] == two[1]
    for left, right in zip(one[0], two[0], strict=True):
        assert torch.equal(left, right), (left - right).abs().max()


def separate(pieces: Cut, model: nn.Module) -> list[Stage]:
    """Each stage from a model of its own, as on ranks: nothing is shared between them."""
    return [pieces.stage(number, copy.deepcopy(model)) for number in range(len(pieces))]


def test_it_may_be_the_first_thing_a_program_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is private in torch was tried in the middle of tracing, failed there, and every model was refused."""
    untried = Part(VERSIONS.name, VERSIONS.instead, VERSIONS._find)  # no public way back to a part not yet tried
    monkeypatch.setattr(tracer, "VERSIONS", untried)
    model, example = make("mlp")
    assert len(cut(model, 2, example)) == 2


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("name", ZOO)
def test_the_stages_together_are_the_model(name: str, stages: int) -> None:
    model, example = make(name)
    if name in ("gated", "packed_lstm"):
        stages = min(stages, 3)  # of gate and lstm the inside stays together
    pieces = cut(model, stages, example, "parameters")
    parts = separate(pieces, model)
    whole = copy.deepcopy(model)
    for input in (example, pytree.tree_map(lambda leaf: leaf[:3], example)):
        expected, gradients = run_whole(whole, input)
        found, summed = run_stages(pieces, parts, input)
        assert_same(expected, found)
        for shared in pieces.shared:  # uses in several stages: the sum is in another order than autograd's
            torch.testing.assert_close(summed.pop(shared), gradients.pop(shared))
        assert_same(dict(sorted(gradients.items())), dict(sorted(summed.items())))
    assert_same(dict(whole.state_dict()), pieces.merge([part.state_dict() for part in parts]))  # statistics too


def test_of_equal_cuts_the_last_stage_gets_the_least() -> None:
    """It makes the loss as well; a cut before an activation left it that too, and the pipeline waited for it."""
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.ReLU())])
    assert cut(model, 2, torch.randn(5, 6), "parameters").bounds == (0, 4, 8)
    assert cut(model, 4, torch.randn(5, 6), "parameters").bounds == (0, 2, 4, 6, 8)


@pytest.mark.parametrize("name", ["resnet", "transformer", "torch_encoder", "dict_input"])
def test_every_seam_is_a_place_to_cut(name: str) -> None:
    model, example = make(name)
    most = layers_of(model, example)
    pieces = cut(model, most, example, "parameters")
    assert_same(run_whole(copy.deepcopy(model), example)[0], run_stages(pieces, separate(pieces, model), example)[0])


def layers_of(model: nn.Module, example: Any) -> int:
    with pytest.raises(Refused, match="layers") as caught:
        cut(model, 1000, example)
    return int(str(caught.value).split("layers: ")[1].split(")")[0])


def test_more_stages_than_layers_is_refused_with_the_way_out() -> None:
    expected = (
        "pipeline cannot use more stages than the model has layers (stages: 8, layers: 5); use --ranks 5 or fewer"
    )
    with pytest.raises(Refused) as caught:
        cut(mlp(), 8, torch.randn(4, 6))
    assert str(caught.value) == expected
    with pytest.raises(Refused, match=r"^hybrid cannot use .*; use stages= 5 or fewer$"):
        cut(mlp(), 8, torch.randn(4, 6), strategy="hybrid", option="stages=")


def test_a_module_that_branches_on_contents_is_taken_whole_and_said_so() -> None:
    pieces = cut(Gated(), 3, torch.randn(4, 6), "parameters")
    assert [pieces.program.operations[bound].name for bound in pieces.bounds[:3]] == ["before", "gate", "after"]
    message = r"layers: 3\).*Gate \(gate\) counts as one layer: its forward branches on.*zoo.py:\d+: if x.sum\(\) > 0"
    with pytest.raises(Refused, match=message):
        cut(Gated(), 4, torch.randn(4, 6))


def test_a_model_that_cannot_be_cut_is_refused_with_reason_and_module() -> None:
    with pytest.raises(Refused, match=r"^model_parallel cannot cut Gate: its forward branches on.*if x.sum\(\) > 0:"):
        cut(Gate(), 2, torch.randn(4, 6), strategy="model_parallel")


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return torch.stack([self.b(row) for row in x])


def test_a_forward_that_counts_samples_is_refused_not_baked_in() -> None:
    with pytest.raises(Refused, match=r"cannot cut Counts: its forward depends on the number of samples: .*finds 4"):
        cut(Counts(), 2, torch.randn(4, 6))


class Crowd(nn.Module):
    """Does something else with many samples."""

    def __init__(self, seven: bool) -> None:
        super().__init__()
        self.a, self.b, self.seven = nn.Linear(6, 6), nn.Linear(6, 6), seven

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x) * (2 if len(x) > 8 else 1)
        return self.b(x.view(-1, 7, 6).flatten(0, 1) if self.seven and len(x) > 8 else x)


@pytest.mark.parametrize("seven", [False, True])
def test_what_happens_with_many_samples_alone_is_refused_too(seven: bool) -> None:
    """Passes over all samples to be measured with took seconds, so a model is looked through with a few of them."""
    few = [torch.randn(count, 6) for count in (3, 2, 28)]
    with pytest.raises(Refused, match="cannot cut Crowd: its forward depends on the number of samples"):
        cut(Crowd(seven), 2, few[0], fewer=few[1], many=few[2])
    assert cut(mlp(), 2, few[0], fewer=few[1], many=few[2]).samples == 28


def test_the_time_to_cut_grows_with_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the model was made while every argument was looked through, n buffers with up to n others each: 1.5 of the
    7 seconds before a MobileNetV2 began."""
    looked = 0
    real = nest.children

    def children(value: Any) -> list[Any] | None:
        nonlocal looked
        looked += 1
        return real(value)

    monkeypatch.setattr(nest, "children", children)
    found = []
    for layers in (20, 80):
        looked = 0
        cut(nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(layers))), 2, torch.randn(4, 4), "parameters")
        found.append(looked)
    assert found[1] < 5 * found[0]


def test_another_length_raises_instead_of_taking_the_examples_branch() -> None:
    model, example = make("transformer")
    pieces = cut(model, 2, example)
    stages = pieces.stages(model)
    longer = torch.randint(0, 9, (5, 12))
    assert_same(run_whole(copy.deepcopy(model), longer)[0], run_stages(pieces, stages, longer)[0])
    with pytest.raises(RuntimeError, match="the model was cut for inputs where its forward finds True but found False"):
        stages[0](torch.randint(0, 9, (5, 17)))


def test_inputs_that_no_stage_could_be_handed_are_refused() -> None:
    with pytest.raises(Refused, match=r"pipeline cannot cut Sequential: its input must be .* \(found a device\)"):
        cut(mlp(), 2, [torch.randn(4, 6), torch.device("cpu")])


@pytest.mark.parametrize(
    ("stages", "balance", "message"),
    [
        (0, "time", "at least 1 stage"),
        (2, "tme", 'no balance named "tme"; did you mean "time"'),
        (2, [2, 2], r"balance \[2, 2\] must give each of 2 stages at least 1 of the model's 5 layers"),
        (2, [5, 0], "at least 1 of the model's 5 layers"),
        (3, ["2"], "must name where each stage after the first begins"),
        (2, ["7"], 'no layer named "7"'),
        (3, ["3", "1"], "in the order the model runs them"),
    ],
)
def test_bad_balances(stages: int, balance: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        cut(mlp(), stages, torch.randn(4, 6), balance)


def test_by_hand_with_counts_and_names() -> None:
    model, example = make("nested_sequential")

    def names(pieces: Cut) -> list[str]:
        return [pieces.program.operations[bound].name for bound in pieces.bounds[1:-1]]

    assert names(cut(model, 2, example, [2, 1])) == ["2.0"]  # the Sequential's own children
    assert names(cut(model, 3, example, [2, 2, 4])) == ["0.2", "1"]  # its layers, opened
    assert names(cut(model, 2, example, ["2"])) == ["2.0"]
    resnet, example = make("resnet")
    assert names(cut(resnet, 3, example, ["layers.1", "head"])) == ["layers.1.conv1", "head"]


def test_by_hand_not_between_a_value_and_a_write_into_it() -> None:
    model, example = make("nested_sequential")
    with pytest.raises(BadInput, match=r'cannot be cut before "0.1": it writes into what comes before'):
        cut(model, 2, example, ["0.1"])


def test_tied_weights_are_told_and_all_names_come_back() -> None:
    model, example = make("tied_by_module")
    pieces = cut(model, 3, example, ["body", "head"])
    assert pieces.shared == {"embed.weight": (0, 2)}
    assert pieces.stage(2, model).names == {"head.weight": "embed.weight"}
    assert list(pieces.stage(2, model).state_dict()) == ["head.weight"]
    merged = pieces.merge([stage.state_dict() for stage in pieces.stages(model)])
    assert list(merged) == list(model.state_dict())
    assert cut(model, 1, example).shared == {}


def test_unused_parameters_stay_with_the_first_stage() -> None:
    model, example = make("writes")
    pieces = cut(model, 2, example)
    assert pieces.spare == ("unused",)
    assert pieces.holders["unused"] == (0,)
    assert "unused" in pieces.stage(0, model).state_dict()


def test_a_cut_travels_by_value_without_weights_and_builds_one_stage_elsewhere() -> None:
    model, example = make("resnet")
    pieces = cut(model, 3, example)
    parcel = cloudpickle.dumps(pieces)
    assert len(parcel) < 20_000 + 40 * len(pieces.program.operations)
    arrived = pickle.loads(parcel)
    last = arrived.stage(2, make("resnet")[0])
    assert set(last.state_dict()) < set(model.state_dict())
    stages = [*pieces.stages(model)[:2], last]
    assert_same(run_whole(copy.deepcopy(model), example)[0], run_stages(arrived, stages, example)[0])
    again = pickle.loads(cloudpickle.dumps(last))
    assert list(again.state_dict()) == list(last.state_dict())


def test_stages_follow_train_and_eval_mode() -> None:
    for name in ("resnet", "transformer"):
        model, example = make(name)
        pieces = cut(model, 2, example, "parameters")
        stages = pieces.stages(model)
        for stage in stages:
            stage.eval()
        model.eval()
        assert_same(run_whole(model, example)[0], run_stages(pieces, stages, example)[0])


def test_own_modules_in_a_sequential_stay_whole_while_there_are_enough() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Attention(8, 2), Attention(8, 2), nn.Linear(8, 2))
    example = torch.randn(5, 3, 8)
    pieces = cut(model, 3, example)
    assert [operation.name for operation in pieces.program.operations] == ["0", "1", "2", "3"]
    stages = [stage.eval() for stage in pieces.stages(model)]
    assert_same(run_whole(copy.deepcopy(model).eval(), example)[0], run_stages(pieces, stages, example)[0])
    assert len(cut(model, 6, example).program.operations) > 6


class TrainOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(x).relu() if self.training else x


def test_a_forward_that_differs_in_eval_mode_says_so() -> None:
    stage = cut(TrainOnly(), 2, torch.randn(4, 6)).stage(0, TrainOnly())
    stage(torch.randn(4, 6))
    with pytest.raises(RuntimeError, match=r"stage 0 was cut in another mode.*eval mode"):
        stage.eval()(torch.randn(4, 6))


def test_the_callers_model_and_random_state_stay_as_they_were(two_threads: None) -> None:
    model, example = make("resnet")
    model.layers[0].bn1.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    state = torch.get_rng_state()
    cut(model, 3, example)
    assert_same(dict(before), dict(model.state_dict()))
    assert modes == [module.training for module in model.modules()]
    assert attributes == {name: set(vars(module)) for name, module in model.named_modules()}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == 2


def test_a_reused_batchnorm_is_not_torn_apart() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.a, self.b, self.c = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.norm(self.b(self.norm(self.a(x)))))

    pieces = cut(Reused(), 3, torch.randn(4, 6), "parameters")
    assert {pieces.holders[name] for name in pieces.holders if name.startswith("norm.")} == {(1,)}


def test_balance_by_parameters_puts_equal_bytes_on_each_side() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 130))
    pieces = cut(model, 2, torch.randn(3, 4), "parameters")
    sizes = [sum(p.numel() for p in stage.parameters()) for stage in pieces.stages(model)]
    assert max(sizes) == min(
        max(sum(p.numel() for p in model[:k].parameters()), sum(p.numel() for p in model[k:].parameters()))
        for k in range(1, 5)
    )


class SlowLayer(nn.Linear):
    """So slow that no busy machine makes up for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return super().forward(x)


def test_balance_by_time_follows_the_measured_cost() -> None:
    small, heavy = [nn.Linear(8, 8) for _ in range(7)], [SlowLayer(8, 8) for _ in range(2)]
    pieces = cut(nn.Sequential(*small, *heavy), 2, torch.randn(128, 8), "time")
    assert pieces.bounds[1] == 8


@given(
    costs=st.lists(st.integers(0, 20), min_size=2, max_size=9),
    crossing=st.lists(st.integers(1, 50), min_size=8, max_size=8),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_cheapest_cut_is_the_one_brute_force_finds(costs: list[int], crossing: list[int], data: Any) -> None:
    places = data.draw(st.lists(st.integers(1, len(costs) - 1), unique=True, min_size=1).map(sorted))
    seams = [Seam(place, crossing[number]) for number, place in enumerate(places)]
    stages = data.draw(st.integers(1, len(seams) + 1))

    def worth(chosen: Sequence[Seam]) -> tuple[int, int]:
        edges = [0, *(seam.position for seam in chosen), len(costs)]
        largest = max(sum(costs[a:b]) for a, b in pairwise(edges))
        return largest, sum(seam.bytes for seam in chosen)

    found = _cheapest(costs, seams, stages, 0.0)
    by_place = {seam.position: seam for seam in seams}
    assert worth([by_place[place] for place in found]) == min(map(worth, combinations(seams, stages - 1)))


def test_describe_is_a_table_of_stages() -> None:
    model, example = make("mlp")
    lines = cut(model, 2, example, [3, 2]).describe().splitlines()
    assert lines[0].split() == ["stage", "layers", "time", "parameters", "sends"]
    assert lines[1].startswith("0      0 .. 2 (3)")
    assert lines[1].endswith("512 B       160 B")  # (6 * 8 + 8 + 8 * 8 + 8) floats; 5 samples of 8 floats
    assert lines[2].endswith("(output)")
    assert len(lines) == 3


def test_what_crosses_says_whether_it_carries_a_gradient() -> None:
    model, example = make("dict_input")
    pieces = cut(model, 2, example, ["relu"])
    kinds = [(form.dtype, form.shape) for wire in pieces.wires(1) for form in wire.tensors]
    assert (torch.int64, (5,)) in kinds
    assert (torch.float32, (5, 6)) in kinds


def test_models_in_functions_and_lambdas_travel() -> None:
    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Attention(8, 2), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    pieces = pickle.loads(cloudpickle.dumps(cut(Local(), 2, torch.randn(3, 4, 8))))
    assert len(pieces) == 2


def test_noise_is_drawn_anew_in_every_step() -> None:
    model, example = make("writes")
    stages = cut(model, 1, example).stages(model)
    assert not torch.equal(stages[0](example)[0], stages[0](example)[0])
