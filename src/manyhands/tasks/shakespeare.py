"""Shakespeare's plays one character after another: an LSTM or a small GPT guesses the next one, and writes.

A sample is a stretch of text, its target the same stretch one character further on; the loss is the mean over its
characters. The last tenth of the text is for testing. A trained model writes by drawing from its guesses (multinomial).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..data import files
from ..schedules import cosine
from ..task import Task
from . import listed, positive
from .models import character_lstm, gpt
from .models.next_symbol import next_symbol_loss, write_on

SYMBOLS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
NUMBER_OF = {symbol: number for number, symbol in enumerate(SYMBOLS)}
STRETCH = 128  # characters a sample
MODELS = {
    "lstm": partial(character_lstm, len(SYMBOLS), width=64, hidden=256),
    "gpt": partial(gpt, len(SYMBOLS), STRETCH, width=128, heads=4, layers=4),
}


def make(model: Literal["lstm", "gpt"] = "lstm", temperature: float = 0.8) -> Task:
    """The task.

    Args:
        model: `lstm`, or a small `gpt`
        temperature: how freely it writes: near 0 always the likeliest character, at 1 each as often as it is predicted

    Example:
        manyhands train shakespeare:model=gpt --sample 200
    """
    positive("shakespeare", "above 0", temperature=temperature)
    return Task(
        model=MODELS[model],
        train=partial(stretches, "train"),
        test=partial(stretches, "test"),
        loss=next_symbol_loss,
        optimizer=partial(adamw, rate=4e-3 if model == "lstm" else 2e-3),
        schedule=cosine(warmup=0.05),
        batch_size=32,
        epochs=3,
        name="shakespeare",
        sample=partial(write, temperature=temperature),
    )


def stretches(split: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both count x 128; in training every character comes in two stretches, in testing in one."""
    numbers = torch.tensor([NUMBER_OF[symbol] for symbol in text(say_so=split == "train") if symbol in NUMBER_OF])
    cut = len(numbers) * 9 // 10
    part, apart = (numbers[:cut], STRETCH // 2) if split == "train" else (numbers[cut:], STRETCH)
    windows = part.unfold(0, STRETCH + 1, apart)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def text(say_so: bool = True) -> str:
    """The plays; made up where the real ones are not at hand."""
    try:
        return files.text("tinyshakespeare.txt")
    except files.DataNotFound as absent:
        if say_so:
            logging.getLogger("manyhands").warning("shakespeare: training on a made-up play instead (%s)", absent)
        return made_up()


def adamw(parameters: Iterable[tuple[str, nn.Parameter]], rate: float) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.99), weight_decay=0.01)


def write(model: nn.Module, length: int, temperature: float = 0.8, start: str = "\n") -> str:
    """`length` characters, the same for the same weights."""
    written = write_on(model, [NUMBER_OF[c] for c in start], length, longest=STRETCH, temperature=temperature)
    return "".join(SYMBOLS[number] for number in written)


# ---- a play made up ------------------------------------------------------------------------------------------------


SPEAKERS = ["KING", "QUEEN", "FOOL", "FIRST LORD", "SECOND LORD", "NURSE", "CAPTAIN", "GHOST"]
NOUNS = listed("crown sword night heart sea winter rose fire grave star horse garden letter shadow throne dream")
KINDS = listed("cold silent golden broken bitter gentle proud weary distant secret")
DEEDS = listed("love fear seek follow lose remember bury carry forget serve")
OPENINGS = ["My lord", "Good friend", "Alas", "Come", "Nay", "Hark", "Sweet lady", "Peace"]


def made_up(characters: int = 400_000) -> str:
    """Speeches of a few lines out of a small grammar."""
    chance = random.Random(0)

    def line() -> str:
        noun, other, kind, deed = (chance.choice(words) for words in (NOUNS, NOUNS, KINDS, DEEDS))
        return chance.choice(
            [
                f"{chance.choice(OPENINGS)}, the {kind} {noun} is in the {other};",
                f"I {deed} the {noun}, and the {noun} will {chance.choice(DEEDS)} me.",
                f"Who would {deed} a {kind} {noun} for a {other}?",
                f"Thy {noun} is {kind}, and {chance.choice(KINDS)} is thy {other}.",
                f"Let the {noun} {deed} the {kind} {other}!",
            ]
        )

    play, size = [], 0
    while size < characters:
        speech = "\n".join([f"{chance.choice(SPEAKERS)}:", *(line() for _ in range(chance.randint(1, 5)))]) + "\n\n"
        play.append(speech)
        size += len(speech)
    return "".join(play)


task = make()
