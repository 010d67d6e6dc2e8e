"""Refuse ranks that differ in hardware or versions where the settings guarantee equal bits."""

import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from pipeline import distributed
from pipeline.errors import InputError
from pipeline.training.run_key import training_code_digest, worker_machine_info

Facts = Mapping[str, Any]
"""Facts of one rank by name: all that decide its bits, and `host`."""

_SHOWN = 16


def check_homogeneous_ranks(device: torch.device) -> None:
    """Compare versions, code and hardware of all ranks; all ranks call it.

    Raises:
        InputError: on all ranks, if one differs from rank 0.
    """
    check_facts(distributed.all_gather_object(_facts(device)))


def _facts(device: torch.device) -> Facts:
    libraries = {}
    if device.type == "cuda":
        libraries = {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}
    return {
        "host": socket.gethostname(),
        **worker_machine_info(device, torch.get_num_threads()),
        # It decodes images in files.
        "pillow": metadata.version("pillow"),
        **libraries,
        "training code": training_code_digest(),
    }


def check_facts(facts: Sequence[Facts]) -> None:
    """Compare the facts of the ranks, in rank order.

    Raises:
        InputError: one differs from rank 0; names the first such rank, its host and what differs.
    """
    first = facts[0]
    for rank, other in enumerate(facts):
        differ = [name for name in first if name != "host" and first[name] != other.get(name)]
        if differ:
            raise InputError(
                f"reduction: exact gives equal bits only on equal processes, but rank {rank} on {other['host']} "
                f"has {_listed(other, differ)}, and rank 0 on {first['host']} has {_listed(first, differ)}; start "
                "equal processes, or set reduction: ddp"
            )


def _listed(facts: Facts, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {str(facts.get(name))[:_SHOWN]}" for name in names)
