"""What ranks send instead of their gradients: torch's communication hooks, on buckets and on whole gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

CompressionKind = Literal["none", "bf16", "fp16", "powersgd"]

# torch refuses to compress the first two exchanges, while DistributedDataParallel still orders its buckets.
_TORCH_STARTS_AT = 2
# Divisions by the norm of a column must survive a column of zeros.
_EPSILON = 1e-8

_ELEMENTWISE: Mapping[CompressionKind, Callable[[Any, Any], Future[Tensor]]] = {
    "none": default_hooks.allreduce_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}


class Bucket(Protocol):
    """What the hooks ask of a `torch.distributed.GradBucket`."""

    def buffer(self) -> Tensor:
        """(n,), overwritten by the result."""

    def gradients(self) -> list[Tensor]:
        """Views of the buffer, with the parameters' shapes."""

    def index(self) -> int:
        """Counted from 0."""

    def is_last(self) -> bool:
        """Whether a step's exchange is complete with it."""


@dataclass(frozen=True)
class FlatGradient:
    """All gradients of a model as the only bucket.

    Attributes:
        flat: (n,) contiguous.
        shapes: of the parameters in `flat`, one after another.
    """

    flat: Tensor
    shapes: Sequence[torch.Size]

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        parts = self.flat.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


class Compression:
    """Averages gradients over ranks, of which each sends less than it has.

    * `bf16`, `fp16`: every number in 16 bits; sums are rounded to them too.
    * `powersgd`: Vogels, Karimireddy and Jaggi 2019, PowerSGD, algorithms 1 and 2. Each matrix M (rows: the first
      dimension) as P Q^T of the given rank, by one step of subspace iteration from the last step's Q. What was not
      sent is added to the next gradient (error feedback). Vectors, and matrices of which less than half the numbers
      would be saved, are sent as they are. It takes a `FlatGradient`: the start of Q and the errors would
      otherwise belong to buckets, whose size must not change a result. And on gloo torch's hook cannot run for several
      buckets at once: it waits for further exchanges inside the threads that are to do them (two a group, so that
      two buckets block each other for ever), and starts them in no order that ranks share.

    Args:
        powersgd_rank: of P and Q; exactly with `powersgd`.
    """

    def __init__(self, kind: CompressionKind = "none", powersgd_rank: int | None = None) -> None:
        assert (kind == "powersgd") == (powersgd_rank is not None), (kind, powersgd_rank)
        self.kind = kind
        self._exchanges = 0
        self._low_rank: Any = None
        if powersgd_rank is not None:
            self._low_rank = PowerSGDState(
                None,
                matrix_approximation_rank=powersgd_rank,
                start_powerSGD_iter=_TORCH_STARTS_AT,
                orthogonalization_epsilon=_EPSILON,
            )
            self._low_rank.iter = _TORCH_STARTS_AT

    def average(self, bucket: Bucket, group: dist.ProcessGroup) -> Future[Tensor]:
        """Start to replace a bucket's content by its mean over the ranks of `group`; the bucket's buffer."""
        if self._low_rank is None:
            return _ELEMENTWISE[self.kind](group, bucket)
        return self._average_low_rank(bucket, group)

    def _average_low_rank(self, bucket: Bucket, group: dist.ProcessGroup) -> Future[Tensor]:
        assert isinstance(bucket, FlatGradient)
        state = self._low_rank
        state.process_group = group
        # A fresh Q is drawn from here: a number to save, where numpy's generator is an object.
        state.rng.seed(self._exchanges)
        self._exchanges += 1
        done = powerSGD_hook(state, bucket)
        done.wait()
        matrices = [gradient for gradient in bucket.gradients() if gradient.dim() > 1]
        if matrices and not torch.stack([matrix.any() for matrix in matrices]).all():
            # Q of a matrix of zeros, as before a layer that starts at zero, is zero, and would stay so for ever.
            state.p_memory_dict.clear()
            state.q_memory_dict.clear()
        return done

    def state_dict(self) -> dict[str, Any] | None:
        """What this rank remembers of earlier exchanges, in plain values; None: nothing."""
        state = self._low_rank
        if state is None:
            return None
        return {
            "exchanges": self._exchanges,
            **{name: {index: t.cpu() for index, t in getattr(state, name).items()} for name in _MEMORIES},
        }

    def load_state_dict(self, saved: Mapping[str, Any] | None, device: torch.device) -> None:
        """Go back to what `to_save` gave."""
        if self._low_rank is None:
            return
        assert saved is not None
        self._exchanges = saved["exchanges"]
        for name in _MEMORIES:
            setattr(self._low_rank, name, {index: t.to(device) for index, t in saved[name].items()})


# Of torch's state: what was not sent yet, P, which torch takes as room to write to, and Q, from which the next step
# starts; under the index of a bucket.
_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")
