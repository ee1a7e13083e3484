"""A tiny GPT-2 under the Hugging Face Trainer, evaluated while it trains, with gradients accumulated over two batches."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.rows = torch.randint(64, (samples, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


if __name__ == "__main__":
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=10,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(GPT2LMHeadModel(config), args, train_dataset=Tokens(80), eval_dataset=Tokens(16)).train()
