"""Steps predicted by the simulator from some batch and bucket sizes and cables, held against those of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from benchmarks.simulator_timing import ALONE, MIB, WITHOUT, StepTimings
from pipeline.distributed import CommConfig
from pipeline.simulator import AllReduceTiming, CommunicationModel, Job, Machine, NetworkLink, fit, simulate_step
from pipeline.simulator.machine import NO_LINK

RANKS = 2

Beside = Literal["all", "wire", "nothing"]
HeldOut = Literal["", "size", "cable"]

_STARTS = (0.3, 1.0, 3.0)  # times what all-reduces alone say
_MOVES_NOTHING = 1e-6
_ALIKE = 1e-5
"""Directions of constants, as unit vectors, whose finite differences cannot be told apart."""


@dataclass(frozen=True)
class Cable:
    """What two hosts are joined by.

    Attributes:
        bytes_per_second: that it is slowed to, in each direction.
        delay_seconds: that a process holds each packet back, in each direction; None: there is no such process.
    """

    bytes_per_second: float
    delay_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredSetting:
    """Measured steps of one setting.

    Attributes:
        bucket_mib: None on one rank.
        cable: between two ranks; None: both are on this machine.
        job: a step without exchange at this batch, until the slowest rank is done; by other batches of the same launch.
        reference: images/s of a rank alone at the largest batch, in the same launch.
        held_out: no constant is fitted to it: its batch or bucket size is new, or its cable; "": it is fitted to.
    """

    ranks: int
    local_batch: int
    bucket_mib: int | None
    cable: Cable | None
    job: Job
    seconds: float
    reference: float
    held_out: HeldOut


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Of a link between two ranks that may be slowed and delayed.

    Attributes:
        latency_seconds: of a message, beside the cable's delay.
        host_seconds: that the hosts take for a byte, however fast the link.
        wire_share: bytes on the wire for each byte sent; 1 where the bandwidth does not vary.
        message_delays: how many of the cable's delays a message takes; 1 where they do not vary.
        beside: what of sending goes on beside the backward pass: all of it, or the wire's part alone, where the hosts
            have no core to spare for theirs, or nothing.
    """

    latency_seconds: float
    host_seconds: float
    wire_share: float
    message_delays: float
    beside: Beside

    def link(self, cable: Cable | None) -> NetworkLink:
        """By this cable; without the hosts' part where that is no part of the link."""
        wire = self.wire_share / cable.bytes_per_second if cable else 0.0
        delay = (cable.delay_seconds or 0.0) if cable else 0.0
        host = 0.0 if self.beside == "wire" else self.host_seconds
        return NetworkLink(
            latency_seconds=self.latency_seconds + self.message_delays * delay,
            bytes_per_second=1 / max(host + wire, 1e-15),
        )


@dataclass(frozen=True, kw_only=True)
class ConstantsFit:
    """What the fitted steps say.

    Attributes:
        constants: that explain them best.
        standard_errors: of what was fitted, by least squares; NaN: the steps do not determine it. What is not named
            was assumed.
        errors: by `beside`, the root mean square of the relative error of the steps at the best other constants.
    """

    constants: Constants
    standard_errors: Mapping[str, float]
    errors: Mapping[Beside, float]


def seconds_of(job: Job) -> float:
    """A step without exchange."""
    return job.ready_seconds[-1] + job.optimizer_seconds


def typical(jobs: Sequence[Job]) -> Job:
    """Of one batch; every part is the median of theirs."""
    assert len({(job.local_batch, job.layer_bytes) for job in jobs}) == 1
    forward, *backward, optimizer = np.median([_parts(job) for job in jobs], axis=0).tolist()
    return replace(jobs[0], forward_seconds=forward, backward_seconds=tuple(backward), optimizer_seconds=optimizer)


def typical_seconds(steps: Sequence[StepTimings], fitted_batches: Sequence[int]) -> dict[tuple[int, str | int], float]:
    """Local batch and way -> until the slowest rank is done, in the middle of all turns.

    A turn in which the machine was slow, by the geometric mean of the steps without exchange of the batches that may be
    fitted to, is taken as if it had been as fast as the middle one.
    """
    slowest = {(of.local_batch, of.way): np.max(of.seconds, axis=0) for of in steps}
    paces = [np.log(slowest[batch, way]) for batch in fitted_batches for way in (ALONE, WITHOUT)]
    pace = np.exp(np.mean(paces, axis=0))
    return {setting: float(np.median(seconds / pace) * np.median(pace)) for setting, seconds in slowest.items()}


def in_seconds(job: Job, seconds: float) -> Job:
    """As a whole, with the same share for each of its parts."""
    factor = seconds / seconds_of(job)
    forward, *backward, optimizer = (factor * part for part in _parts(job))
    return replace(job, forward_seconds=forward, backward_seconds=tuple(backward), optimizer_seconds=optimizer)


def _parts(job: Job) -> tuple[float, ...]:
    return (job.forward_seconds, *job.backward_seconds, job.optimizer_seconds)


class Jobs:
    """A rank's steps without exchange at any local batch: each part a straight line through those measured."""

    def __init__(self, measured: Sequence[Job]) -> None:
        batches = sorted({job.local_batch for job in measured})
        assert len(batches) >= 2, "a line takes two batch sizes"
        middle = [typical([job for job in measured if job.local_batch == batch]) for batch in batches]
        assert all(job.layer_bytes == middle[0].layer_bytes for job in middle)
        self._like = middle[0]
        parts = np.array([_parts(job) for job in middle])
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


def predicted_seconds(cell: MeasuredSetting, constants: Constants) -> float:
    """Of a step; ranks are nodes of one GPU, and a ring of two is what gloo's all-reduce is."""
    pair = Machine(nodes=RANKS, gpus_per_node=1, intra_node=NO_LINK, inter_node=constants.link(cell.cable))
    job = cell.job
    if constants.beside == "wire" and cell.ranks > 1:
        job = _with_host_work(job, constants.host_seconds)
    communication = CommunicationModel(
        algorithm="ring",
        bucket_bytes=MIB * (cell.bucket_mib or 1),
        overlap=constants.beside != "nothing",
        compression=1.0,
        negotiation=None,
        # Torch's own size comes with torch's own first bucket.
        first_bucket_bytes=MIB if cell.bucket_mib == CommConfig().bucket_mib else None,
    )
    return simulate_step(pair, job, communication, cell.ranks).seconds


def _with_host_work(job: Job, host_seconds: float) -> Job:
    """The backward pass stands still while the rank sends: in a ring of two each byte once."""
    backward = [
        seconds + host_seconds * n_bytes for seconds, n_bytes in zip(job.backward_seconds, job.layer_bytes, strict=True)
    ]
    return replace(job, backward_seconds=tuple(backward))


def starting_constants(points: Mapping[Cable | None, Sequence[AllReduceTiming]]) -> Constants:
    """From all-reduces alone, as `simulate --fit` takes them, by each cable; without other work on the cores.

    Raises:
        ValueError: they do not determine latency and bandwidth.
    """
    links = {cable: fit(of, "ring", hold_out="n_bytes").link for cable, of in points.items()}
    wires = [1 / cable.bytes_per_second if cable else 0.0 for cable in links]
    delays = [(cable.delay_seconds or 0.0) if cable else 0.0 for cable in links]
    host, wire = _line([1 / link.bytes_per_second for link in links.values()], wires)
    latency, message_delays = _line([link.latency_seconds for link in links.values()], delays)
    return Constants(
        latency_seconds=latency, host_seconds=host, wire_share=wire, message_delays=message_delays, beside="all"
    )


def _line(values: Sequence[float], units: Sequence[float]) -> tuple[float, float]:
    """What is there without units, and for each of them, which is 1 where all are alike; neither is below 0."""
    scale = max(values)
    if scale == 0:
        return 0.0, 1.0
    if len(set(units)) == 1:
        return max(0.0, float(np.mean(values)) - units[0]), 1.0
    start, slope = nnls(np.column_stack([np.ones(len(units)), np.array(units) / scale]), np.array(values) / scale)[0]
    return float(start * scale), float(slope)


def fit_constants(cells: Sequence[MeasuredSetting], start: Constants) -> ConstantsFit:
    """Least squares of the relative error of fitted steps on two ranks, with whatever `beside` explains them best."""
    fitted = [cell for cell in cells if not cell.held_out and cell.ranks == RANKS]
    assert fitted
    cables = [cell.cable for cell in fitted if cell.cable]
    # Of a microsecond, of 10 GB/s: scales of what may come out as 0.
    scales = {
        "latency_seconds": max(start.latency_seconds, 1e-6),
        "host_seconds": max(start.host_seconds, 1e-10),
    }
    if len({cable.bytes_per_second for cable in cables}) > 1:
        scales["wire_share"] = max(start.wire_share, 1.0)
    if len({cable.delay_seconds for cable in cables}) > 1:
        scales["message_delays"] = max(start.message_delays, 1.0)

    def constants_of(units: NDArray[np.float64], beside: Beside) -> Constants:
        found = {name: float(unit * scale) for unit, (name, scale) in zip(units, scales.items(), strict=True)}
        return Constants(**{"wire_share": 1.0, "message_delays": 1.0, **found}, beside=beside)

    def errors(units: NDArray[np.float64], beside: Beside) -> list[float]:
        constants = constants_of(units, beside)
        return [predicted_seconds(cell, constants) / cell.seconds - 1 for cell in fitted]

    # What hides behind the backward pass makes edges and flats, where one start may stay.
    found = {
        beside: min(
            (least_squares(errors, np.full(len(scales), unit), bounds=(0, np.inf), args=(beside,)) for unit in _STARTS),
            key=lambda tried: float(tried.cost),
        )
        for beside in get_args(Beside)
    }
    best = min(found, key=lambda beside: float(found[beside].cost))
    spreads = standard_errors(found[best].jac, found[best].fun)
    return ConstantsFit(
        constants=constants_of(found[best].x, best),
        standard_errors={name: spread * scale for spread, (name, scale) in zip(spreads, scales.items(), strict=True)},
        errors={beside: float(np.sqrt(np.mean(np.square(tried.fun)))) for beside, tried in found.items()},
    )


def standard_errors(jacobian: NDArray[np.float64], residuals: NDArray[np.float64]) -> list[float]:
    """Of least squares; NaN for what moves no residual, and for all where some move them in the same way.

    Args:
        jacobian: (points, constants); residuals: (points,).
    """
    n_points, n_constants = jacobian.shape
    lengths = np.linalg.norm(jacobian, axis=0)
    moves = lengths > _MOVES_NOTHING
    spreads = np.full(n_constants, np.nan)
    of_moving = jacobian[:, moves]
    degrees = n_points - of_moving.shape[1]
    if degrees > 0 and np.linalg.matrix_rank(of_moving / lengths[moves], tol=_ALIKE) == of_moving.shape[1]:
        variance = float(residuals @ residuals) / degrees
        spreads[moves] = np.sqrt(variance * np.diag(np.linalg.inv(of_moving.T @ of_moving)))
    return [float(spread) for spread in spreads]


def rows_of(cells: Sequence[MeasuredSetting], constants: Constants) -> list[dict[str, object]]:
    """Efficiencies in percent, and by how many points the prediction is too high.

    Each is against a rank alone of its own launch: a machine that was slower then was slower in both.
    """
    rows: list[dict[str, object]] = []
    for cell in cells:
        measured_percent = 100 * cell.local_batch / cell.seconds / cell.reference
        predicted_percent = 100 * cell.local_batch / predicted_seconds(cell, constants) / cell.reference
        rows.append(
            {
                "ranks": cell.ranks,
                "local_batch": cell.local_batch,
                "bucket_mib": cell.bucket_mib,
                "mbit_per_second": 8e-6 * cell.cable.bytes_per_second if cell.cable else None,
                "delay_ms": 1e3 * (cell.cable.delay_seconds or 0.0) if cell.cable else None,
                "held_out": cell.held_out,
                "measured_efficiency": measured_percent,
                "predicted_efficiency": predicted_percent,
                "error_points": predicted_percent - measured_percent,
            }
        )
    return rows
