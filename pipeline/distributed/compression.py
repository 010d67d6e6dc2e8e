"""Gradient compression by torch's communication hooks, on DDP buckets or on the complete gradient."""

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

# torch refuses to compress the first two all-reduces, while DistributedDataParallel still orders its buckets.
_TORCH_STARTS_AT = 2
# Keeps the division by a column's norm finite for a column of zeros.
_EPSILON = 1e-8

_ELEMENTWISE: Mapping[CompressionKind, Callable[[Any, Any], Future[Tensor]]] = {
    "none": default_hooks.allreduce_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}

# Fields of torch's PowerSGDState, by bucket index: the errors, P, which torch reuses as a buffer, and Q, from which the
# next step starts.
_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")


class Bucket(Protocol):
    """The part of `torch.distributed.GradBucket` that the hooks use."""

    def buffer(self) -> Tensor:
        """Return the flat gradients (n,), which the result overwrites."""

    def gradients(self) -> list[Tensor]:
        """Return views of the buffer in the parameters' shapes."""

    def index(self) -> int:
        """Return the position of the bucket, from 0."""

    def is_last(self) -> bool:
        """Return whether it is the last bucket of a step."""


@dataclass(frozen=True)
class FlatGradient:
    """All gradients of a model in a single bucket.

    Attributes:
        flat: (n,) contiguous.
        shapes: of the parameters, in their order in `flat`.
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
    """Averages compressed gradients over ranks.

    * `bf16`, `fp16`: every number in 16 bits; sums are rounded to 16 bits too.
    * `powersgd`: Vogels, Karimireddy and Jaggi 2019, PowerSGD, algorithms 1 and 2. It sends each matrix M (rows: the
      first dimension) as P Q^T of rank `powersgd_rank`, by one step of subspace iteration from the last step's Q. The
      difference is added to the next gradient (error feedback). Vectors, and matrices of which less than half the
      numbers would be saved, are sent uncompressed.

    PowerSGD takes a `FlatGradient`, for two reasons. With buckets, the start of Q and the errors would depend on the
    size of a bucket, which must not change a result. And on gloo torch's hook cannot run for several buckets at once.
    It waits for further collectives inside the threads that run them (two per group, so two buckets deadlock). It also
    starts them in an order that differs between ranks.

    Args:
        powersgd_rank: rank of P and Q, > 0; required with `powersgd`, None otherwise.
    """

    def __init__(self, kind: CompressionKind = "none", powersgd_rank: int | None = None) -> None:
        assert (kind == "powersgd") == (powersgd_rank is not None), (kind, powersgd_rank)
        self.kind = kind
        self._n_averages = 0
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
        """Start to replace a bucket's content by its mean over the ranks of `group`; the future holds the buffer."""
        if self._low_rank is None:
            return _ELEMENTWISE[self.kind](group, bucket)
        return self._average_low_rank(bucket, group)

    def _average_low_rank(self, bucket: Bucket, group: dist.ProcessGroup) -> Future[Tensor]:
        assert isinstance(bucket, FlatGradient)
        state = self._low_rank
        state.process_group = group
        # A new Q is sampled from this generator. A count can be saved in a checkpoint, numpy's generator cannot.
        state.rng.seed(self._n_averages)
        self._n_averages += 1
        done = powerSGD_hook(state, bucket)
        done.wait()
        matrices = [gradient for gradient in bucket.gradients() if gradient.dim() > 1]
        if matrices and not torch.stack([matrix.any() for matrix in matrices]).all():
            # Q of a zero matrix, as before a layer initialized to zero, is zero and would stay zero permanently.
            state.p_memory_dict.clear()
            state.q_memory_dict.clear()
        return done

    def state_dict(self) -> dict[str, Any] | None:
        """Return this rank's error feedback and factors in plain values; None without PowerSGD."""
        state = self._low_rank
        if state is None:
            return None
        return {
            "exchanges": self._n_averages,
            **{name: {index: t.cpu() for index, t in getattr(state, name).items()} for name in _MEMORIES},
        }

    def load_state_dict(self, saved: Mapping[str, Any] | None, device: torch.device) -> None:
        """Restore what `state_dict` returned."""
        if self._low_rank is None:
            return
        assert saved is not None
        self._n_averages = saved["exchanges"]
        for name in _MEMORIES:
            setattr(self._low_rank, name, {index: t.to(device) for index, t in saved[name].items()})
