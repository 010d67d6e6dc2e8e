"""States of small made-up runs, and what to look for in a folder of their checkpoints."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def state_of(step: int, numel: int = 4) -> dict[str, Any]:
    return {"weights": torch.full((numel,), float(step)), "optimizer": {"state": {0: {"step": step}}, "lr": 0.1}}


def never(line: str) -> None:
    raise AssertionError(line)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def steps(folder: Path) -> list[int]:
    return [int(path.name.split(".")[0].removeprefix("step-")) for path in files(folder)]


def same(left: Any, right: Any) -> bool:
    """Equal in value to the bit, in type, in strides and in order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        shape = (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
        return shape and left.contiguous().view(-1).view(torch.uint8).equal(
            right.contiguous().view(-1).view(torch.uint8)
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right)))
