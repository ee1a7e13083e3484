"""A LightningModule trains as it is: its steps are the model, its optimizer and schedule the recipe."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import manyhands as mh
from manyhands.world.launch.by_value import by_value_copy
from tests.conftest import distance, importing, quick_fit

L = pytest.importorskip("lightning", reason="lightning is not installed")
torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's code


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> Any:
    """The library is large: by the fork server, not by every rank."""
    with importing("lightning", "torchmetrics"):
        yield


class Classifier(L.LightningModule):
    """As Lightning's own documentation writes them."""

    def __init__(self, rate: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        output = self(x)
        self.accuracy(output, y)
        self.log_dict({"val_loss": nn.functional.cross_entropy(output, y), "val_accuracy": self.accuracy})

    def on_validation_epoch_end(self) -> None:
        self.log("at_the_end", 7.0)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.2, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Points(L.LightningDataModule):
    def __init__(self, batch: int = 16):
        super().__init__()
        self.batch = batch

    def setup(self, stage: str) -> None:
        x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
        self.data = TensorDataset(x, x[:, :3].argmax(1))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.data, batch_size=self.batch, shuffle=True)

    def val_dataloader(self) -> list[DataLoader]:
        return [DataLoader(self.data, batch_size=24)]


def by_trainer(module: L.LightningModule, epochs: int, folder: Any) -> None:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", default_root_dir=folder, **quiet)
    trainer.fit(module, Points(64))


def weights_apart(run: mh.Run, module: nn.Module) -> float:
    assert run.weights is not None
    return max(float((run.weights[name] - value).abs().max()) for name, value in module.state_dict().items())


def test_it_trains_as_lightnings_trainer_does(tmp_path: Any) -> None:
    module = Classifier()
    run = quick_fit(mh.from_lightning(module, Points(64), epochs=4))
    assert sorted(run.weights or ()) == sorted(module.state_dict())
    by_trainer(module, 4, tmp_path)
    assert weights_apart(run, module) < 1e-6


class PerEpoch(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)]


def test_a_schedule_per_epoch(tmp_path: Any) -> None:
    module = PerEpoch()
    run = quick_fit(mh.from_lightning(module, Points(64), epochs=5))
    by_trainer(module, 5, tmp_path)
    assert weights_apart(run, module) < 1e-6


@pytest.mark.parametrize(
    "strategy", ["ddp", "pipeline", *(pytest.param(name, marks=pytest.mark.soak) for name in ("data_parallel", "fsdp"))]
)
def test_exact_strategies(strategy: str) -> None:
    task = mh.from_lightning(Classifier, Points())
    run = quick_fit(task, strategy, ranks=2)
    assert run.exact
    assert distance(quick_fit(task), run) < 1e-6


def test_what_is_logged_in_validation_is_evaluated() -> None:
    task = mh.from_lightning(Classifier, Points())
    run = quick_fit(task, max_steps=1)
    found = mh.evaluate(task, run.weights)
    model = Classifier()
    model.load_state_dict(run.weights)
    x, y = Points().batch and task.test.dataset.tensors  # type: ignore[union-attr]
    assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(model(x), y)))
    assert found["val_loss"] == pytest.approx(found["loss"])
    assert found["val_accuracy"] == pytest.approx(float((model(x).argmax(1) == y).float().mean()))
    assert found["at_the_end"] == 7.0


def test_a_stated_loss_makes_forward_the_model() -> None:
    task = mh.from_lightning(Classifier, Points(), loss=nn.functional.cross_entropy)
    run = quick_fit(task)
    assert run.test["accuracy"] is not None  # type: ignore[index]
    assert distance(quick_fit(mh.from_lightning(Classifier, Points())), run) < 1e-6


@pytest.mark.parametrize("how", [copy.deepcopy, by_value_copy])
def test_copies_compute_with_their_own_weights(how: Any) -> None:
    task = mh.from_lightning(Classifier(), Points())
    copied = how(task.model)
    batch = next(iter(DataLoader(task.train.dataset, batch_size=8)))  # type: ignore[union-attr]
    before = float(task.model(batch)["loss"])  # type: ignore[operator]
    with torch.no_grad():
        copied.get_parameter("head.weight").zero_()
    assert float(copied(batch)["loss"]) != pytest.approx(before)
    assert float(task.model(batch)["loss"]) == before  # type: ignore[operator]


class Gan(Classifier):
    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.encoder.parameters()), torch.optim.Adam(self.head.parameters())]


class ByHand(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OwnStep(Classifier):
    def optimizer_step(self, *given: Any, **named: Any) -> None:
        pass

    def on_train_epoch_end(self) -> None:
        pass


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Gan, "configure_optimizers gives 2 optimizers; here every step is one update of one optimizer"),
        (ByHand, r"ByHand makes its updates itself \(automatic_optimization=False"),
        (OwnStep, r"OwnStep overrides on_train_epoch_end, optimizer_step, which are not called here"),
        (lambda: nn.Linear(1, 1), r"needs a LightningModule and a LightningDataModule \(found Linear\)"),
    ],
)
def test_what_would_train_something_else_is_refused(module: Any, message: str) -> None:
    with pytest.raises(mh.BadInput, match=message):
        mh.from_lightning(module, Points())


def test_hooks_are_left_out_where_the_caller_says_so() -> None:
    assert mh.from_lightning(OwnStep, Points(), ignore=["on_train_epoch_end", "optimizer_step"]).batch_size == 16
    with pytest.raises(mh.BadInput, match=r'ignore names hooks .* \(found "on_epoch"'):
        mh.from_lightning(Classifier, Points(), ignore=["on_epoch"])


def test_data_must_come_from_somewhere_and_once() -> None:
    with pytest.raises(mh.BadInput, match="Classifier comes without data; give a datamodule"):
        mh.from_lightning(Classifier, epochs=2)
    loader = DataLoader(TensorDataset(torch.zeros(4, 6)), batch_size=2)
    with pytest.raises(mh.BadInput, match="there are 2 DataLoaders for one purpose"):
        mh.from_lightning(Classifier, train=[loader, loader])


class Annealed(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)["loss"] * self.current_epoch


def test_what_a_step_cannot_know_is_named() -> None:
    task = mh.from_lightning(Annealed(), Points())
    with pytest.raises(mh.BadInput, match=r"asks for self.current_epoch, which is not known inside a step"):
        task.model((torch.zeros(2, 6), torch.zeros(2).long()))  # type: ignore[operator]
