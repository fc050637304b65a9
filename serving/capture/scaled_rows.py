"""Rows of features as int8 codes with their scale in front, by single operations: for all that the kernel leaves."""

import torch
from torch import Tensor

#: The largest code.
LARGEST = 127.0


def scaled_rows(rows: Tensor) -> Tensor:
    """int8 [F, 4 + D] of rows [F, D], where they are: the bytes of a float32 scale, then the codes, of quantised().

    A row with a value that is not finite has a scale that is none: the courier refuses it.
    """
    numbers = rows.float()
    scales = numbers.abs().amax(dim=1) / LARGEST
    # A row of zeros, or of numbers too small for a scale, has codes of zero.
    units = torch.where(scales > 0.0, scales, torch.inf)
    codes = (numbers / units[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return torch.cat([scales[:, None].view(torch.int8), codes], dim=1)
