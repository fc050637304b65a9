"""Names of torchvision.transforms that transformers and SGLang import."""

from . import functional, v2
from .functional import InterpolationMode

__all__ = ["InterpolationMode", "functional", "v2"]
