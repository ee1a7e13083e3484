"""Sentences to numbers, and what happens without the real ones."""

import logging
from pathlib import Path

import pytest
import torch

from manyhands.data import nest
from manyhands.tasks import load_task, reviews


def test_tokens_are_words_numbers_and_marks():
    assert reviews.tokens("It's 90 minutes -- and DULL!") == ["it's", "90", "minutes", "-", "-", "and", "dull", "!"]
    assert reviews.tokens("  ") == [""]


def test_the_vocabulary_holds_words_that_come_twice_the_frequent_first():
    number_of = reviews.vocabulary([["a", "b", "a"], ["b", "c", "a"]])
    assert number_of == {"a": 2, "b": 3}


def test_sentences_are_padded_and_cut():
    numbered = reviews.numbered([["a", "x"], ["a"] * 100], {"a": 2})
    assert numbered["words"].shape == (2, reviews.LONGEST)
    assert numbered["words"][0, :3].tolist() == [2, reviews.UNKNOWN, reviews.PADDING]
    assert numbered["lengths"].tolist() == [2, reviews.LONGEST]


@pytest.mark.usefixtures("no_data")
def test_without_the_files_it_makes_sentences_and_says_so_once(caplog: pytest.LogCaptureFixture):
    task = load_task("reviews")
    with caplog.at_level(logging.WARNING, logger="manyhands"):
        (train, labels), (test, _) = task.train(), task.test()
    assert [record.getMessage() for record in caplog.records] == [
        "reviews: training on made-up sentences instead (text: not found)"
    ]
    assert (len(labels), nest.count(test)) == (7200, 800)
    assert train["lengths"].min() < 10
    assert train["lengths"].max() > 30
    assert set(labels.tolist()) == {0, 1}
    assert train["words"].max() < reviews.WORDS


def test_it_learns(monkeypatch: pytest.MonkeyPatch):
    plain = [
        [f"what a {word} {of} !" for word in words for of in reviews.SUBJECTS] for words in (reviews.BAD, reviews.GOOD)
    ]
    monkeypatch.setattr(reviews, "texts", lambda say_so: plain)
    task = load_task("reviews:width=32,hidden=32")
    (inputs, labels), (test, truth) = task.train(), task.test()
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.named_parameters())
    for batch in torch.cat([torch.randperm(len(labels)) for _ in range(5)]).split(32):
        optimizer.zero_grad()
        task.loss(model(nest.each(inputs, lambda tensor, batch=batch: tensor[batch])), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        right = model.eval()(test).argmax(1) == truth
    assert right.float().mean() > 0.9


def test_the_real_files(real_data: Path):
    if not (real_data / "text").is_dir():
        pytest.skip("no texts there")
    (inputs, labels), (test, _) = load_task("reviews").train(), load_task("reviews").test()
    assert (len(labels), nest.count(test)) == (9595, 1067)
    assert labels.float().mean() == pytest.approx(0.5, abs=0.01)
    assert (inputs["words"] == reviews.UNKNOWN).float().mean() < 0.02
