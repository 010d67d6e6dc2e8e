"""How gradients travel in a simulation: as the command line says, else as the trainer, or Horovod, would send them."""

import argparse
from collections.abc import Mapping

from pipeline.costmodel import Communication, Job, Negotiation
from pipeline.distributed import Transport

_MIB = 2.0**20
# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES; DDP has it where it is told no size, and the trainer tells it none for
# torch's own.
_FIRST_BUCKET_MIB = 1.0
# HOROVOD_FUSION_THRESHOLD, as horovod/common/operations.cc sets it in 0.28.1.
_FUSION_MIB = 128.0


def ways(arguments: argparse.Namespace, job: Job) -> dict[str, Communication]:
    """Name -> way, for each algorithm in buckets, or in one message, and with `--negotiation` as Horovod fuses them."""
    found = {algorithm: _fixed(arguments, job, algorithm) for algorithm in arguments.algorithms}
    if arguments.negotiation:
        found |= {f"{algorithm}, negotiated": _negotiated(arguments, algorithm) for algorithm in arguments.algorithms}
    return found


def described(found: Mapping[str, Communication], job: Job) -> Mapping[str, tuple[object, str]]:
    """What all of them share, and the sizes of messages by kind; each with its origin."""
    kinds = {"negotiated" if way.negotiation else "fixed": way for way in found.values()}
    any_way = next(iter(found.values()))
    return {
        "sent": ("beside the backward pass" if any_way.overlap else "after the backward pass", "given"),
        "compression": (any_way.compression, "given"),
        **{f"messages, {kind}": (_sizes(way, job), "given") for kind, way in kinds.items()},
    }


def _fixed(arguments: argparse.Namespace, job: Job, algorithm: str) -> Communication:
    told, torchs_own = arguments.bucket_mib, Transport().bucket_mib
    together = arguments.no_overlap and told is None
    return Communication(
        algorithm=algorithm,
        bucket_bytes=sum(job.layer_bytes) if together else _MIB * (told or torchs_own),
        first_bucket_bytes=_MIB * _FIRST_BUCKET_MIB if not together and told in (None, torchs_own) else None,
        overlap=not arguments.no_overlap,
        compression=arguments.compression,
        negotiation=None,
    )


def _negotiated(arguments: argparse.Namespace, algorithm: str) -> Communication:
    cycle_ms, message_us = arguments.negotiation
    return Communication(
        algorithm=algorithm,
        bucket_bytes=_MIB * (arguments.bucket_mib or _FUSION_MIB),
        overlap=not arguments.no_overlap,
        compression=arguments.compression,
        negotiation=Negotiation(cycle_seconds=cycle_ms / 1e3, message_seconds=message_us / 1e6),
    )


def _sizes(way: Communication, job: Job) -> str:
    mib = f"{way.bucket_bytes / _MIB:g} MiB"
    if way.negotiation:
        return f"what is ready, at most {mib}"
    first = way.first_bucket_bytes
    if first is None and way.bucket_bytes >= sum(job.layer_bytes):
        return "one"
    return f"{mib}, the first {first / _MIB:g}" if first else mib
