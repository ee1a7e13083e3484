"""The task of a part, cut to fewer samples."""

from functools import partial

from manyhands.studies.lab.experiment import Part
from manyhands.studies.lab.part_task import task_of
from manyhands.tasks.sparse import make


def test_samples_whose_input_is_a_dictionary_are_cut_too():
    """A task whose input is no tensor of its own failed to make its data: a slice is no key of a dictionary."""
    part = Part("few", partial(make, features=50, train=40, test=30), train_samples=8, test_samples=5)
    task = task_of(part, seed=0)
    for data, count in ((task.train(), 8), (task.test(), 5)):
        inputs, labels = data
        assert {len(values) for values in inputs.values()} == {len(labels)} == {count}
