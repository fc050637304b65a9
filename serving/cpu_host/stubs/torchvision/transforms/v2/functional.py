"""Names of torchvision.transforms.v2.functional that transformers imports."""

from ..functional import InterpolationMode, pil_to_tensor

__all__ = ["InterpolationMode", "pil_to_tensor"]
