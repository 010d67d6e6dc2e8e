"""The arithmetic of training: full single precision, or faster and coarser. Evaluation is in full."""

from contextlib import AbstractContextManager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision (Micikevicius et al. 2018) for `bf16` and `fp16`, nothing for the others."""
    return torch.autocast(device.type, dtype=_HALF.get(precision), enabled=precision in _HALF)


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Of the loss, which keeps small gradients above the smallest number of `fp16`; None for the others."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None
