"""Film reviews of one sentence, liked or not: texts of very different lengths; LSTM on packed sequences.

The sentences are cut into words, the most frequent words of the training part get numbers, and sentences are padded to
the longest. The model sorts and packs them by length itself. Every tenth sentence is for testing.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import files
from ..schedules import linear
from ..task import Task
from . import listed
from .models import sentence_lstm

WORDS = 10_000  # the size of the table, whatever the text
PADDING, UNKNOWN = 0, 1
LONGEST = 60


def make(width: int = 64, hidden: int = 64) -> Task:
    """The task.

    Args:
        width: size of the vector of a word
        hidden: size of the LSTM's state, in each direction

    Example:
        manyhands train reviews:width=32,hidden=32
    """
    return Task(
        model=partial(sentence_lstm, WORDS, width=width, hidden=hidden),
        train=partial(sentences, "train"),
        test=partial(sentences, "test"),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        schedule=linear(warmup=0.05),
        batch_size=32,
        epochs=5,
        name="reviews",
    )


def sentences(split: str) -> tuple[dict[str, Tensor], Tensor]:
    """{"words": count x 60, "lengths": count} and labels (1: liked) of a split."""
    disliked, liked = texts(say_so=split == "train")
    labelled = [(tokens(text), label) for label, part in enumerate((disliked, liked)) for text in part]
    train = [sentence for number, sentence in enumerate(labelled) if number % 10]
    chosen = train if split == "train" else labelled[::10]
    number_of = vocabulary(words for words, _ in train)
    return numbered([words for words, _ in chosen], number_of), torch.tensor([label for _, label in chosen])


def texts(say_so: bool = True) -> tuple[list[str], list[str]]:
    """The disliking and the liking sentences; made up where the real ones are not at hand."""
    try:
        return files.text("rt_polarity_neg.txt").splitlines(), files.text("rt_polarity_pos.txt").splitlines()
    except files.DataNotFound as absent:
        if say_so:
            logging.getLogger("manyhands").warning("reviews: training on made-up sentences instead (%s)", absent)
        return made_up(label=0), made_up(label=1)


def tokens(text: str) -> list[str]:
    """Words and punctuation marks; an empty text is one unknown word."""
    return re.findall(r"[a-z]+(?:'[a-z]+)?|\d+|[^\sa-z\d]", text.lower()) or [""]


def vocabulary(texts: Iterable[Sequence[str]]) -> dict[str, int]:
    """The most frequent words that come at least twice, numbered from 2."""
    counts = Counter(itertools.chain.from_iterable(texts))
    frequent = [word for word, count in counts.most_common(WORDS - 2) if count > 1]
    return {word: number for number, word in enumerate(frequent, start=2)}


def numbered(texts: Sequence[Sequence[str]], number_of: dict[str, int]) -> dict[str, Tensor]:
    words = torch.full((len(texts), LONGEST), PADDING)
    lengths = torch.empty(len(texts), dtype=torch.int64)
    for row, text in enumerate(texts):
        numbers = [number_of.get(word, UNKNOWN) for word in text[:LONGEST]]
        words[row, : len(numbers)] = torch.tensor(numbers)
        lengths[row] = len(numbers)
    return {"words": words, "lengths": lengths}


# ---- sentences made up ---------------------------------------------------------------------------------------------


SUBJECTS = listed("film story plot acting direction script dialogue ending cast humour pace camera music romance drama")
GOOD = listed("moving clever warm honest funny gripping tender fresh vivid graceful sharp charming bold rich lively")
BAD = listed("dull shallow clumsy lifeless stale tedious bland hollow messy forced grating lazy muddled cold empty")
ADVERBS = listed("truly often deeply mostly always simply quite rather")
ASIDES = [
    "for all its length",
    "as in so many sequels",
    "set in a small town by the sea",
    "about two brothers and a dog",
    "with a famous name in every role",
    "shot over three long winters",
]


def made_up(label: int, count: int = 4000) -> list[str]:
    """Sentences of 5 to 45 words; what they say last counts, and `never` turns a word round."""
    chance = random.Random(label)

    def opinion(good: int) -> str:
        turned = chance.random() < 0.3
        word = chance.choice(GOOD if good != turned else BAD)
        how = "never" if turned else chance.choice(ADVERBS)
        return f"the {chance.choice(SUBJECTS)} is {how} {word}"

    def sentence() -> str:
        verdict = opinion(label)
        if chance.random() < 0.5:
            verdict = f"{opinion(1 - label)} , but {verdict}"
        for aside in chance.sample(ASIDES, chance.choice([0, 0, 1, 2, 4])):
            verdict = f"{aside} , {verdict}" if chance.random() < 0.5 else f"{verdict} , {aside}"
        return f"{verdict} ."

    return [sentence() for _ in range(count)]


task = make()
