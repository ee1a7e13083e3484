"""BERT from transformers sorts token rows into classes (examples/bring/bert.py)."""

from functools import partial

import torch
from transformers import BertConfig, BertForSequenceClassification

import manyhands as mh

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
config = BertConfig(**sizes, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
tokens = torch.randint(1, 50, (256, 12), generator=torch.Generator().manual_seed(0))
task = mh.Task(
    model=partial(BertForSequenceClassification, config),
    train=[{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 4} for row in tokens],
    target="labels",
    optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=16,
)
