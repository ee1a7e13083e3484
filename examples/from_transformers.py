"""BERT and TrainingArguments, as a script for Trainer has them: manyhands train examples/from_transformers.py ddp --ranks 2"""

from functools import partial

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import manyhands as mh

config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50)
tokens = torch.randint(0, 25, (1000, 12), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row + 25 * (i % 2), "label": i % 2, "note": "not taken"} for i, row in enumerate(tokens)]
args = TrainingArguments("runs", learning_rate=1e-3, per_device_train_batch_size=40, num_train_epochs=1, report_to=[])
task = mh.from_transformers(partial(BertForSequenceClassification, config), rows, args=args)
