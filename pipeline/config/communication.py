"""How workers exchange gradients and weights: keys of a recipe."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Duration, Positive, PositiveFloat, Section


class PostLocalSgd(Section):
    """Post-local SGD (Lin et al. 2020, Don't Use Large Mini-Batches, Use Local SGD).

    Attributes:
        start: before this point gradients are exchanged at every step.
        period: after `start` each worker takes local steps, and weights are averaged every `period` steps.
    """

    start: Duration
    period: Annotated[Positive, Field(ge=2)]


class CommunicationConfig(Section):
    """How workers exchange gradients.

    `library`, `bucket_mib`, `overlap` and `hierarchical` change a result by rounding alone; the others change it.

    Attributes:
        library: `ddp`, torch's DistributedDataParallel; or `horovod`, whose coordinator decides at every step which
            gradients form a message, so last digits may differ from run to run. Horovod must be built by hand
            (docs/guides/clusters.md), and excludes the other keys.
        bucket_mib: MiB of gradients in a message, sent during the backward pass. 25 is torch's default, with a first
            message of 1 MiB.
        overlap: false sends all gradients in one message after the backward pass.
        compression: format of the gradients sent. `bf16` or `fp16`: 16-bit numbers. `powersgd`: matrices as products of
            two with `powersgd_rank` columns, with the residual added to the next gradient (Vogels et al. 2019,
            PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization), without overlap. Each
            worker compresses a separate gradient, so one process per simulated worker is required.
        powersgd_rank: required with `powersgd`, not allowed otherwise.
        hierarchical: sum gradients inside each node, average over nodes, and broadcast the mean inside each node.
        workers_per_node: required with `hierarchical` and `compression`, which then applies between nodes only. The
            result is that of simulated nodes with this many workers, and every node must run this many processes.
    """

    library: Literal["ddp", "horovod"] = "ddp"
    bucket_mib: PositiveFloat = 25.0
    overlap: bool = True
    compression: Literal["none", "bf16", "fp16", "powersgd"] = "none"
    powersgd_rank: Positive | None = None
    hierarchical: bool = False
    workers_per_node: Annotated[Positive, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        others = [
            name for name in type(self).model_fields if name != "library" and getattr(self, name) != _default(name)
        ]
        if self.library == "horovod" and others:
            raise ValueError(f"{others[0]}: does not apply to horovod; remove the key")
        low_rank = self.compression == "powersgd"
        if low_rank != (self.powersgd_rank is not None):
            raise ValueError(
                "powersgd_rank: compression powersgd needs one; give e.g. 4"
                if low_rank
                else f"powersgd_rank: compression {self.compression} has no rank; remove the key"
            )
        if low_rank and self.overlap:
            raise ValueError("overlap: powersgd compresses whole gradients, after the backward pass; set false")
        if not self.overlap and self.bucket_mib != _default("bucket_mib"):
            raise ValueError("bucket_mib: without overlap all gradients are one message; remove the key")
        between_nodes = self.hierarchical and self.compression != "none"
        if between_nodes and self.workers_per_node is None:
            raise ValueError(
                f"workers_per_node: {self.compression} between nodes depends on the number of workers of each; give it"
            )
        if self.workers_per_node is not None and not between_nodes:
            raise ValueError("workers_per_node: applies only to compression with hierarchical; remove the key")
        return self


def _default(name: str) -> object:
    return CommunicationConfig.model_fields[name].default
