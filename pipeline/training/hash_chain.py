"""The hash chain of a training run, for audits that train the run again.

Each link is the SHA-256 of the link before it, the optimizer step, the sample ids since that link, the weights and
buffers, the optimizer's state and the weight average. The first link that differs between two chains bounds the step
at which the two runs diverge. A link also has the digest through each group of tensors: the first that differs names
the group. `run_analysis.bit_comparison` compares chains.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline import distributed
from pipeline.batching import SampleStream
from pipeline.distributed import World
from pipeline.durations import BatchSizes
from pipeline.training.settings import TrainSettings
from pipeline.training.state import ChainLink, TrainState

LINK_EXAMPLES = 50_000
"""Fewest training images between two links: docs/decisions/hash-chain.md has the costs."""
MAX_LINKS = 16
"""Most links of a run before the last one: on a GPU images are cheap and hashing is not."""
SAMPLES = "sample order"
"""The first group of a link."""
_GROUP_DIGITS = 16
_MODULE_DEPTH = 2

_Entry = tuple[str, str, Any]
"""Part of the state, name, and value: a tensor, or what JSON has."""


def link_is_due(settings: TrainSettings, step: int) -> bool:
    """Return whether a link follows the first `step` optimizer steps; `HashChain.close` adds the last link."""
    sizes = settings.batch_sizes
    spacing = max(LINK_EXAMPLES, math.ceil(sizes.examples(settings.steps) / MAX_LINKS))
    crossed = sizes.examples(step) // spacing > sizes.examples(step - 1) // spacing
    return crossed and step < settings.steps


def first_difference(a: Sequence[ChainLink], b: Sequence[ChainLink]) -> tuple[int, int] | None:
    """Return the steps between which two chains of one job diverge; None if they are equal.

    Returns:
        The step of the last equal link, 0 without one; and the step of the first link that differs or that one chain
        lacks.
    """
    equal_through = 0
    for one, other in itertools.zip_longest(a, b):
        steps = [link.step for link in (one, other) if link is not None]
        if len(steps) < 2 or (one.step, one.sha256) != (other.step, other.sha256):
            return equal_through, min(steps)
        equal_through = one.step
    return None


class HashChain:
    """The chain of one run, which rank 0 computes.

    A GPU trains on while a thread hashes: `add` copies the state on the GPU and from there to the host.

    Args:
        state: of the run; holds the links, so that checkpoints include them. It waits for all of them before it is
            saved.
        stream: a separate stream of the run's samples: the trainer's keeps only the latest epochs.
    """

    def __init__(self, state: TrainState, stream: SampleStream, sizes: BatchSizes, world: World) -> None:
        self._state, self._stream, self._sizes, self._world = state, stream, sizes, world
        self._thread = ThreadPoolExecutor(1) if world.is_main and world.device.type == "cuda" else None

    def add(self) -> None:
        """Append a link for the run's current state."""
        if not self._world.is_main:
            return
        step, entries = self._state.step, self._entries()
        if self._thread is None:
            self._append(step, _HostCopy(entries, shares_memory=True))
            return
        # One copy at a time: a slow processor must not fill its memory.
        self._state.wait_for_links()
        self._state.pending_link = self._thread.submit(self._append, step, _HostCopy(entries, shares_memory=False))

    def close(self) -> list[ChainLink]:
        """Append the last link, of the evaluation weights, and return all links; all ranks call it."""
        self.add()
        self._state.wait_for_links()
        return distributed.broadcast_object(self._state.links)

    def _entries(self) -> list[_Entry]:
        """Return part, name and value of all that a link hashes."""
        state = self._state
        parts: dict[str, Mapping[str, Any]] = {
            "model": state.model.state_dict(),
            "optimizer": dict(_optimizer_state(state.model, state.optimizer)),
            "average": state.average.state_dict() if state.average else {},
            "scaler": state.scaler.state_dict() if state.scaler else {},
        }
        return [(part, name, value) for part, values in parts.items() for name, value in values.items()]

    def _append(self, step: int, copy: "_HostCopy") -> None:
        links = self._state.links
        last = links[-1] if links else ChainLink(step=0, sha256="")
        digest = hashlib.sha256(f"{last.sha256} {step}\n".encode())
        for earlier in range(last.step, step):
            sample_ids, _ = self._stream.samples(self._sizes.examples(earlier), self._sizes.size_at(earlier))
            digest.update(np.ascontiguousarray(sample_ids, dtype="<i8").data)
        groups = [(SAMPLES, digest.hexdigest()[:_GROUP_DIGITS])]
        for group, members in itertools.groupby(copy.entries(), key=lambda entry: _group(entry[0], entry[1])):
            for part, name, value in members:
                _update(digest, f"{part} {name}", value)
            groups.append((group, digest.hexdigest()[:_GROUP_DIGITS]))
        links.append(ChainLink(step=step, sha256=digest.hexdigest(), groups=tuple(groups)))


class _HostCopy:
    """The entries of a link as they are now, tensors as flat ones on the host, in memory order.

    The tensors of a GPU are joined there, by type, and copied without waiting for them.

    Args:
        shares_memory: dense tensors of the CPU are not copied.
    """

    def __init__(self, entries: Sequence[_Entry], *, shares_memory: bool) -> None:
        self._plain = list(entries)
        on_gpu: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
        for index, (part, name, value) in enumerate(entries):
            if isinstance(value, Tensor):
                flat = _in_memory_order(value)
                flat = flat if value.is_cuda or shares_memory else flat.clone()
                self._plain[index] = part, name, _Flat(value.dtype, tuple(value.shape), flat)
                if value.is_cuda:
                    on_gpu.setdefault(value.dtype, []).append((index, flat))
        self._copied: torch.cuda.Event | None = None
        for dtype, tensors in on_gpu.items():
            joined = torch.cat([flat for _, flat in tensors])
            host = torch.empty(len(joined), dtype=dtype, pin_memory=True)
            host.copy_(joined, non_blocking=True)
            for (index, _), flat in zip(tensors, host.split([len(flat) for _, flat in tensors]), strict=True):
                part, name, value = self._plain[index]
                self._plain[index] = part, name, value._replace(flat=flat)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def entries(self) -> list[_Entry]:
        """Return the entries once they are on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._plain


class _Flat(NamedTuple):
    """A tensor's type and shape, and its elements in memory order."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    flat: Tensor


def _group(part: str, name: str) -> str:
    """Return the group of a tensor: its part of the state and its module, no deeper than a stage of a ResNet."""
    modules = name.split()[0].removeprefix("module.").split(".")[:-1]
    return " ".join([part, ".".join(modules[:_MODULE_DEPTH])]).strip()


def _optimizer_state(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield the optimizer's state of each parameter under the parameter's name, independent of its group."""
    for name, parameter in model.named_parameters():
        state: Mapping[str, Any] = optimizer.state.get(parameter, {})
        for key in sorted(state):
            yield f"{name} {key}", state[key]


def _update(digest: "hashlib._Hash", name: str, value: Any) -> None:
    if isinstance(value, _Flat):
        digest.update(f"{name} {value.dtype} {value.shape}\n".encode())
        digest.update(value.flat.view(torch.uint8).numpy().data)
    else:
        digest.update(f"{name} {json.dumps(value, sort_keys=True)}\n".encode())


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return the elements (N,) of a tensor in memory order, without a copy for a dense tensor."""
    tensor = tensor.detach()
    axes = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.permute(axes).contiguous().flatten()
