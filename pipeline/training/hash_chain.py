"""The hash chain of a training run, for audits that train the run again.

Each link is the SHA-256 of the link before it, the optimizer step, the sample ids since that link, the weights and
buffers, the optimizer's state and the weight average. The first link that differs between two chains bounds the step
at which the two runs diverge. A link also has the digest through each group of tensors: the first that differs names
the group. `same_bits` compares chains.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

    Args:
        state: of the run; holds the links, so that checkpoints include them.
        stream: a separate stream of the run's samples: the trainer's keeps only the latest epochs.
    """

    def __init__(self, state: TrainState, stream: SampleStream, sizes: BatchSizes, world: World) -> None:
        self._state, self._stream, self._sizes, self._world = state, stream, sizes, world

    def add(self) -> None:
        """Append a link for the run's current state."""
        if self._world.is_main:
            self._state.links.append(self._next())

    def close(self) -> list[ChainLink]:
        """Append the last link, of the evaluation weights, and return all links; all ranks call it."""
        self.add()
        return distributed.broadcast(self._state.links)

    def _next(self) -> ChainLink:
        state = self._state
        last = state.links[-1] if state.links else ChainLink(step=0, sha256="")
        digest = hashlib.sha256(f"{last.sha256} {state.step}\n".encode())
        for step in range(last.step, state.step):
            sample_ids, _ = self._stream.samples(self._sizes.examples(step), self._sizes.size_at(step))
            digest.update(np.ascontiguousarray(sample_ids, dtype="<i8").data)
        parts: dict[str, Mapping[str, Any]] = {
            "model": state.model.state_dict(),
            "optimizer": dict(_optimizer_state(state.model, state.optimizer)),
            "average": state.average.state_dict() if state.average else {},
            "scaler": state.scaler.state_dict() if state.scaler else {},
        }
        groups = [(SAMPLES, digest.hexdigest()[:_GROUP_DIGITS])]
        entries = [(part, name, value) for part, values in parts.items() for name, value in values.items()]
        for group, members in itertools.groupby(entries, key=lambda entry: _group(entry[0], entry[1])):
            for part, name, value in members:
                _update(digest, f"{part} {name}", value)
            groups.append((group, digest.hexdigest()[:_GROUP_DIGITS]))
        return ChainLink(step=state.step, sha256=digest.hexdigest(), groups=tuple(groups))


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
    if isinstance(value, Tensor):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(_memory_view(value))
    else:
        digest.update(f"{name} {json.dumps(value, sort_keys=True)}\n".encode())


def _memory_view(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in memory order, without a copy for a dense tensor on a CPU."""
    host = tensor.detach().cpu()
    axes = sorted(range(host.ndim), key=host.stride, reverse=True)
    return host.permute(axes).contiguous().flatten().view(torch.uint8).numpy().data
