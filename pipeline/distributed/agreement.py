"""Flags that ranks agree on without waiting for each other."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from pipeline.distributed.collectives import several


class Agreement:
    """Flags that any rank may raise; all ranks learn of them at the same call, one call later.

    The delay lets the exchange run beside the work between two calls, on the CPU, so that it never
    waits for a GPU. A single process learns of its own flags at once.
    """

    def __init__(self, n_flags: int) -> None:
        self._flags = torch.zeros(n_flags, dtype=torch.int32)
        self._pending: Any = None
        self._group: Any = dist.new_group(backend="gloo") if several() and dist.get_backend() != "gloo" else None

    def exchange(self, flags: Sequence[bool]) -> list[bool]:
        """Send this rank's flags; returns which of those sent with the last call any rank had raised."""
        if not several():
            return list(flags)
        if self._pending is not None:
            self._pending.wait()
        agreed = self._flags.bool().tolist()
        self._flags = torch.tensor(flags, dtype=torch.int32)
        self._pending = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def forget(self) -> None:
        """Drop what the last call sent: another run begins. All ranks call it."""
        self.exchange([False] * len(self._flags))
