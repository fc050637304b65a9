"""Is there anything faster than a CPU here?"""


def is_accelerator_present() -> bool:
    """Whether this torch build sees an accelerator (CUDA, ROCm, XPU, MPS or a registered device).

    Loads torch on the first call, which takes seconds; creates no device context.
    """
    import torch  # noqa: PLC0415 - most launches name their device and never need torch in this process

    return torch.accelerator.is_available()
