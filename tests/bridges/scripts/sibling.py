"""Imported by a script from its own folder."""

import torch


def make_model():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 2)
