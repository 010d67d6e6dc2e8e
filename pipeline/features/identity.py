"""What extracted features, and heads fitted on them, are recognized by."""

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch

from pipeline.artifacts.code import code_digest
from pipeline.distributed import Ranks
from pipeline.training.fingerprint import Identity, worker_machine

# Plumbing, words for people, and settings, whose values are in the key.
_PASSIVE = frozenset({"pipeline", "pipeline.stages"}) | frozenset(
    f"pipeline.{name}"
    for name in (
        "artifacts.code", "artifacts.finished", "artifacts.provenance", "config.params", "energy", "errors",
        "features.identity", "paths", "processes", "run_log", "stages.harness", "stages.parallel",
        "training.fingerprint", "training.kept_networks", "training.settings",
    )
)  # fmt: skip
# Beyond those of training.
_PACKAGES = ("pillow", "pyarrow", "scikit-learn", "scipy")


def features_key(values: Mapping[str, Any], *, module: str, ranks: Ranks) -> str:
    """Hex digest of all that decides the bits.

    Args:
        values: plain; settings and digests of what is read.
        module: whose syntax trees, with those of what it imports, turn them into the result.
        ranks: that share the images; their number decides which images pass together.
    """
    job = {
        **values,
        "ranks": ranks.count,
        "code": code_digest(module, passive=_PASSIVE),
        "versions": {package: metadata.version(package) for package in _PACKAGES},
    }
    return Identity(job=job, machine=worker_machine(ranks.device, torch.get_num_threads())).key
