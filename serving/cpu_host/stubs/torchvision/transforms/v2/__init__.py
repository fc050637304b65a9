"""Names of torchvision.transforms.v2 that transformers imports."""

from . import functional

__all__ = ["functional"]
