"""What each worker computes in a step."""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, kw_only=True)
class Job:
    """One optimizer step of one worker, measured without communication.

    Attributes:
        local_batch: images of a worker and step.
        layer_bytes: (n_layers,) of the gradients, in the order of the backward pass: the last layer first. 0 where a
            layer has no parameters.
        forward_seconds: of the local batch.
        backward_seconds: (n_layers,) of the local batch, in the same order.
        optimizer_seconds: whatever the batch.
    """

    local_batch: int
    layer_bytes: tuple[float, ...]
    forward_seconds: float
    backward_seconds: tuple[float, ...]
    optimizer_seconds: float

    def __post_init__(self) -> None:
        assert self.local_batch >= 1, self.local_batch
        assert len(self.layer_bytes) == len(self.backward_seconds) >= 1, self
        assert min(*self.layer_bytes, *self.backward_seconds, self.forward_seconds, self.optimizer_seconds) >= 0, self
        assert self.forward_seconds + sum(self.backward_seconds) > 0, self

    @property
    def ready_seconds(self) -> list[float]:
        """(n_layers,): when the gradient of each layer is there, from the start of the step."""
        return list(accumulate(self.backward_seconds, initial=self.forward_seconds))[1:]

    def share(self, workers: int) -> "Job":
        """The same global batch divided among workers, with times of forward and backward in proportion.

        A device is less efficient on fewer images, so this flatters strong scaling; where the local batches can be
        measured, measure them and make a job of each.

        Raises:
            ValueError: `workers` does not divide the batch.
        """
        if self.local_batch % workers:
            raise ValueError(f"{self.local_batch} images do not divide among {workers} workers")
        return Job(
            local_batch=self.local_batch // workers,
            layer_bytes=self.layer_bytes,
            forward_seconds=self.forward_seconds / workers,
            backward_seconds=tuple(seconds / workers for seconds in self.backward_seconds),
            optimizer_seconds=self.optimizer_seconds,
        )
