"""Limit the vector instructions of a process, so that processors of several kinds compute equal bits."""

import os
from typing import Literal

from pipeline import has_avx2
from pipeline.errors import InputError

InstructionSet = Literal["avx2"]

AVX2_VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    # MKL chooses by the processor's maker, too. This is its one setting with equal bits on all x86-64 processors.
    "MKL_CBWR": "COMPATIBLE",
}
"""What torch, oneDNN and MKL read at the first computation of a process."""


def limit_instructions(isa: InstructionSet | None) -> None:
    """Make this process, and those that it starts, compute with these instructions; None changes nothing.

    Must be called before the process computes anything by torch. A GPU's results do not depend on it.

    Args:
        isa: `train.isa` of params.yaml.

    Raises:
        InputError: the processor lacks the instructions, or the environment asks for others.
    """
    if isa is None:
        return
    if not has_avx2():
        raise InputError(f"train.isa: {isa}, which this processor does not have; remove it, and finetune.isa")
    for name, value in AVX2_VARIABLES.items():
        found = os.environ.setdefault(name, value)
        if found.lower() != value.lower():
            raise InputError(f"train.isa: {isa} needs {name}={value}, but the environment has {found}; unset {name}")
    # Stages without a network would import torch for nothing.
    import torch

    assert torch.backends.cpu.get_cpu_capability() == "AVX2", "the process had computed before"
