"""The models of the built-in tasks: at their top level chains of blocks, so that they can be cut into stages."""

from .images import Normalise, lenet
from .mobilenet import mobilenetv2
from .norms import SAMPLE_NORMS, GhostBatchNorm2d, Norm, SampleNorm2d, ScaledConv2d, start_from
from .resnet import resnet20, resnet50
from .text import character_lstm, gpt, sentence_lstm

__all__ = [
    "GhostBatchNorm2d",
    "Norm",
    "Normalise",
    "SAMPLE_NORMS",
    "SampleNorm2d",
    "ScaledConv2d",
    "character_lstm",
    "gpt",
    "lenet",
    "mobilenetv2",
    "resnet20",
    "resnet50",
    "sentence_lstm",
    "start_from",
]
