"""Import-only stand-in: torchvision's wheels are linked against CUDA and do not load beside a CPU torch, while SGLang
and transformers need only its names. Anything that would touch a picture raises.
"""

from . import io, transforms

__all__ = ["io", "transforms"]
__version__ = "0.28.0"
