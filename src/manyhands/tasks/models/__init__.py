"""The models of the built-in tasks: at their top level chains of blocks, so that they can be cut into stages."""

from .images import Normalise, lenet
from .mobilenet import mobilenetv2
from .norms import GhostBatchNorm2d, Norm, StandardisedConv2d
from .resnet import resnet20, resnet50
from .text import character_lstm, sentence_lstm, small_gpt

__all__ = [
    "GhostBatchNorm2d",
    "Norm",
    "Normalise",
    "StandardisedConv2d",
    "character_lstm",
    "lenet",
    "mobilenetv2",
    "resnet20",
    "resnet50",
    "sentence_lstm",
    "small_gpt",
]
