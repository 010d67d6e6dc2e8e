"""Steps predicted by the simulator from some batch sizes, bucket sizes and bandwidths, held against the others'."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from benchmarks.simulator_timing import MIB
from pipeline.costmodel import Communication, Job, Link, Machine, Measurement, fit, simulate_step
from pipeline.costmodel.machine import NO_LINK

RANKS = 2


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Measured steps of one setting.

    Attributes:
        bucket_mib: None on one rank.
        bytes_per_second: that the link is shaped to; None: it is not.
        reference: images/s of a rank alone at the largest batch, in the same launch.
        held_out: no constant is fitted to it.
    """

    ranks: int
    local_batch: int
    bucket_mib: int | None
    bytes_per_second: float | None
    seconds: float
    reference: float
    held_out: bool


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Of a link between two ranks that may be shaped.

    Attributes:
        latency_seconds: of a message.
        host_seconds: that the hosts take for a byte, however fast the link.
        wire_share: bytes on the wire for each byte sent; 0 where no link is shaped.
        overlap: whether sending goes on beside the backward pass. Where ranks have no core to spare for it, it does
            not.
        error: root mean square of the relative error of the steps it is fitted to.
    """

    latency_seconds: float
    host_seconds: float
    wire_share: float
    overlap: bool
    error: float = 0.0

    def link(self, bytes_per_second: float | None) -> Link:
        """At this bandwidth."""
        wire = 0.0 if bytes_per_second is None else self.wire_share / bytes_per_second
        return Link(latency_seconds=self.latency_seconds, bytes_per_second=1 / max(self.host_seconds + wire, 1e-15))


def seconds_of(job: Job) -> float:
    """A step without exchange."""
    return job.ready_seconds[-1] + job.optimizer_seconds


def typical(jobs: Sequence[Job]) -> Job:
    """The one in the middle, by its seconds."""
    return sorted(jobs, key=seconds_of)[(len(jobs) - 1) // 2]


class Jobs:
    """A rank's steps without exchange at any local batch: each part a straight line through those measured."""

    def __init__(self, measured: Sequence[Job]) -> None:
        batches = sorted({job.local_batch for job in measured})
        assert len(batches) >= 2, "a line takes two batch sizes"
        middle = [typical([job for job in measured if job.local_batch == batch]) for batch in batches]
        assert all(job.layer_bytes == middle[0].layer_bytes for job in middle)
        self._like = middle[0]
        parts = np.array([[job.forward_seconds, *job.backward_seconds, job.optimizer_seconds] for job in middle])
        self._lines = np.polyfit(np.array(batches, dtype=np.float64), parts, 1)

    def at(self, local_batch: int) -> Job:
        """Nothing takes less than no time."""
        slope, start = self._lines
        forward, *backward, optimizer = np.maximum(start + slope * local_batch, 0.0).tolist()
        return replace(
            self._like,
            local_batch=local_batch,
            forward_seconds=forward,
            backward_seconds=tuple(backward),
            optimizer_seconds=optimizer,
        )


def predicted_seconds(cell: Cell, job: Job, constants: Constants) -> float:
    """Of a step; ranks are nodes of one GPU, and a ring of two is what gloo's all-reduce is."""
    link = constants.link(cell.bytes_per_second)
    pair = Machine(nodes=RANKS, gpus_per_node=1, inside=NO_LINK, between=link)
    communication = Communication(
        algorithm="ring",
        bucket_bytes=MIB * (cell.bucket_mib or 1),
        overlap=constants.overlap,
        compression=1.0,
        negotiation=None,
    )
    return simulate_step(pair, job, communication, cell.ranks).seconds


def starting_constants(points: Mapping[float | None, Sequence[Measurement]]) -> Constants:
    """From all-reduces alone, as `simulate --fit` takes them, at each bandwidth; without other work on the cores.

    Raises:
        ValueError: they do not determine latency and bandwidth.
    """
    links = {shaped: fit(of, "ring", hold_out="n_bytes").link for shaped, of in points.items()}
    seconds_a_byte = np.array([1 / link.bytes_per_second for link in links.values()])
    wires = np.array([0.0 if shaped is None else 1 / shaped for shaped in links])
    scale = max(seconds_a_byte)
    host, wire = nnls(np.column_stack([np.ones(len(wires)), wires / scale]), seconds_a_byte / scale)[0]
    latency = float(np.median([link.latency_seconds for link in links.values()]))
    return Constants(latency_seconds=latency, host_seconds=float(host * scale), wire_share=float(wire), overlap=True)


def fit_constants(cells: Sequence[Cell], jobs: Jobs, start: Constants) -> Constants:
    """Least squares of the relative error of fitted steps on two ranks; with overlap or without, as explains them."""
    fitted = [cell for cell in cells if not cell.held_out and cell.ranks == RANKS]
    assert fitted
    shaped = any(cell.bytes_per_second is not None for cell in fitted)
    # Of a microsecond, of 10 GB/s: scales of what may come out as 0.
    scale = np.array([max(start.latency_seconds, 1e-6), max(start.host_seconds, 1e-10), max(start.wire_share, 1.0)])
    free = 3 if shaped else 2

    def constants_of(units: NDArray[np.float64], overlap: bool) -> Constants:
        latency, host, wire = np.append(units, np.zeros(3 - free)) * scale
        return Constants(
            latency_seconds=float(latency), host_seconds=float(host), wire_share=float(wire), overlap=overlap
        )

    def errors(units: NDArray[np.float64], overlap: bool) -> list[float]:
        constants = constants_of(units, overlap)
        return [predicted_seconds(cell, jobs.at(cell.local_batch), constants) / cell.seconds - 1 for cell in fitted]

    candidates = []
    for overlap in (True, False):
        found = least_squares(errors, np.ones(free), bounds=(0, np.inf), args=(overlap,))
        error = float(np.sqrt(np.mean(np.square(found.fun))))
        candidates.append(replace(constants_of(found.x, overlap), error=error))
    return min(candidates, key=lambda constants: constants.error)


def rows_of(
    cells: Sequence[Cell], jobs: Mapping[int, Jobs], constants: Constants, reference: float
) -> list[dict[str, object]]:
    """Efficiencies in percent, and by how many points the prediction is too high.

    Args:
        jobs: number of ranks -> their steps.
        reference: images/s of one rank alone at the largest batch, where the constants were fitted.
    """
    rows: list[dict[str, object]] = []
    for cell in cells:
        predicted = predicted_seconds(cell, jobs[cell.ranks].at(cell.local_batch), constants)
        # Each against a rank alone of its own launch: a machine that was slower then was slower in both.
        measured_percent = 100 * cell.local_batch / cell.seconds / cell.reference
        predicted_percent = 100 * cell.local_batch / predicted / reference
        rows.append(
            {
                "ranks": cell.ranks,
                "local_batch": cell.local_batch,
                "bucket_mib": cell.bucket_mib,
                "mbit_per_second": None if cell.bytes_per_second is None else 8e-6 * cell.bytes_per_second,
                "held_out": cell.held_out,
                "measured_efficiency": measured_percent,
                "predicted_efficiency": predicted_percent,
                "error_points": predicted_percent - measured_percent,
            }
        )
    return rows
