"""A vision transformer from timm (examples/bring/timm_vit.py)."""

from functools import partial

import timm
import torch

import manyhands as mh

sizes = {"img_size": 32, "patch_size": 8, "num_classes": 10, "depth": 3, "embed_dim": 48}
images = torch.randn(256, 3, 32, 32, generator=torch.Generator().manual_seed(0))
task = mh.Task(
    model=partial(timm.create_model, "vit_tiny_patch16_224", **sizes),
    train=(images, images.mean((1, 2, 3)).mul(200).long().clamp(-5, 4) + 5),
    loss=torch.nn.functional.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.05),
    batch_size=16,
)
