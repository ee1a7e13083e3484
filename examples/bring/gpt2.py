"""GPT-2 from transformers: samples are dictionaries, the loss is the model's own (examples/bring/gpt2.py)."""

from functools import partial

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import manyhands as mh

config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
tokens = torch.randint(0, 8, (256, 16), generator=torch.Generator().manual_seed(0)).cumsum(1) % 64
task = mh.Task(
    model=partial(GPT2LMHeadModel, config),
    train=[{"input_ids": row, "labels": row} for row in tokens],
    target="labels",
    optimizer=partial(torch.optim.AdamW, lr=3e-3),
    batch_size=8,
)
