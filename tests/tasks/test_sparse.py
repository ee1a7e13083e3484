"""Sparse logistic regression: sparse gradients, and as good as a solver made for it."""

import pytest
import torch

from manyhands.data import nest
from manyhands.errors import BadInput
from manyhands.tasks import load_task, sparse


def test_gradients_hold_the_features_of_the_batch_and_nothing_else():
    task = load_task("sparse:features=500,train=64,test=16")
    inputs, labels = task.train()
    model = task.model()
    task.loss(model(inputs), labels).backward()
    gradient = model.weights.weight.grad
    assert gradient.is_sparse
    touched = set(gradient.coalesce().indices()[0].tolist())
    assert touched == set(inputs["features"].flatten().tolist()) - {0}


def test_the_dense_twin_computes_the_same_numbers_with_full_gradients():
    found = []
    for spec in ("sparse:features=500,train=64,test=16", "sparse:features=500,train=64,test=16,dense"):
        task = load_task(spec)
        inputs, labels = task.train()
        model = task.model()
        task.loss(model(inputs), labels).backward()
        found.append(model.weights.weight.grad)
    assert [gradient.is_sparse for gradient in found] == [True, False]
    assert torch.allclose(found[0].to_dense(), found[1])


def test_samples_have_unit_length_and_their_own_numbers_of_features():
    inputs, labels = sparse.samples("train", 1000, 500)
    assert torch.allclose(inputs["values"].norm(dim=1), torch.ones(1000))
    present = (inputs["features"] > 0).sum(1)
    assert (present.min(), present.max()) == (10, sparse.MOST)
    assert torch.equal(inputs["features"] > 0, inputs["values"] > 0)
    assert 0.4 < labels.float().mean() < 0.6
    counts = torch.bincount(inputs["features"].flatten(), minlength=501)[1:]
    assert counts[:10].sum() > 10 * counts[-10:].sum()  # some are frequent, most are rare


def test_the_same_data_each_time_and_other_data_for_testing():
    again = [sparse.samples(split, 50, 500)[0]["features"] for split in ("train", "train", "test")]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_a_bad_number_of_features_is_refused():
    with pytest.raises(BadInput, match=r"task sparse: option features must be at least 1 \(found 0\)"):
        load_task("sparse:features=0")


@pytest.mark.parametrize(
    ("features", "train", "test"), [(2000, 8000, 2000), pytest.param(20_000, 60_000, 10_000, marks=pytest.mark.soak)]
)
def test_as_good_as_scikit_learn(features: int, train: int, test: int):
    linear_model = pytest.importorskip("sklearn.linear_model")
    from scipy.sparse import csr_matrix

    def matrix(inputs: dict[str, torch.Tensor]) -> csr_matrix:
        rows = torch.arange(len(inputs["values"])).repeat_interleave(sparse.MOST)
        places = rows.numpy(), inputs["features"].flatten().numpy()
        return csr_matrix((inputs["values"].flatten().numpy(), places), shape=(len(inputs["values"]), features + 1))

    task = load_task(f"sparse:features={features},train={train},test={test}")
    (inputs, labels), (unseen, truth) = task.train(), task.test()
    reference = linear_model.LogisticRegression(max_iter=300).fit(matrix(inputs), labels.numpy())
    wanted = reference.score(matrix(unseen), truth.numpy())

    model = task.model()
    optimizer = task.optimizer(model.named_parameters())
    batches = torch.cat([torch.randperm(len(labels), generator=torch.Generator().manual_seed(e)) for e in range(3)])
    schedule = task.schedule(optimizer, -(-len(batches) // 32))
    for batch in batches.split(32):
        optimizer.zero_grad()
        task.loss(model(nest.each(inputs, lambda tensor, batch=batch: tensor[batch])), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        found = (model(unseen).argmax(1) == truth).float().mean().item()
    assert found == pytest.approx(wanted, abs=0.01)
