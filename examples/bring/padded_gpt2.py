"""A causal model on texts of unequal length, padded: the loss is a mean over tokens (examples/bring/padded_gpt2.py)."""

from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel

import manyhands as mh

config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
texts = [torch.arange(2 + 7 * number % 23) * (1 + number % 5) % 64 for number in range(256)]
padded, labels = (pad_sequence(texts, batch_first=True, padding_value=value) for value in (0, -100))
task = mh.Task(
    model=partial(GPT2LMHeadModel, config),
    train={"input_ids": padded, "attention_mask": (labels >= 0).long(), "labels": labels},
    target="labels",
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=8,
)
