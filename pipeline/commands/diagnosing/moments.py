"""Moments on a device, without holding it up."""

import time
from typing import Any

import torch


def moment(device: torch.device) -> Any:
    """Now on a CPU; on a GPU when it has done what was started so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: Any, second: Any) -> float:
    """Of two moments of one device, which has reached the second."""
    if isinstance(first, float):
        return float(second - first)
    return float(first.elapsed_time(second)) / 1000
