"""Fit the simulator to steps at some batch sizes, bucket sizes and cables, and predict the others."""

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

Overlap = Literal["all", "wire", "nothing"]
HeldOut = Literal["", "size", "cable"]

_STARTS = (0.3, 1.0, 3.0)
"""Starting points of the fit, as multiples of the constants from all-reduces alone."""

_NO_EFFECT = 1e-6
"""Length of a column of the Jacobian below which a constant moves no residual."""

_SAME_DIRECTION = 1e-5
"""Tolerance at which finite differences cannot distinguish the directions of constants, as unit vectors."""


@dataclass(frozen=True)
class Cable:
    """The cable between two hosts.

    Attributes:
        bytes_per_second: bandwidth in each direction.
        delay_seconds: delay that a process adds to each packet, in each direction; None without such a process.
    """

    bytes_per_second: float
    delay_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredSetting:
    """Measured steps of one setting.

    Attributes:
        bucket_mib: None on one rank.
        cable: between the two ranks; None if both are on this machine.
        job: a step without exchange at this batch, until the slowest rank is done; interpolated from other batches of
            the same launch.
        seconds: measured time of a step.
        reference: images/s of a single rank at the largest batch, in the same launch.
        held_out: why no constant is fitted to it: new batch or bucket "size", or new "cable"; "" if it is in the fit.
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
    """Constants of a link between two ranks with a cable of limited bandwidth and some delay.

    Attributes:
        latency_seconds: of a message, in addition to the cable's delay.
        host_seconds: time of the hosts per byte, independent of the link.
        wire_share: bytes on the wire per byte sent; 1 if the bandwidth does not vary.
        message_delays: number of the cable's delays per message; 1 if the delays do not vary.
        overlap: what part of sending overlaps with the backward pass: all of it, the wire's part alone (hosts without a
            spare core), or nothing.
    """

    latency_seconds: float
    host_seconds: float
    wire_share: float
    message_delays: float
    overlap: Overlap

    def link(self, cable: Cable | None) -> NetworkLink:
        """Return the link over this cable; excludes the hosts' part if `overlap` is "wire"."""
        wire = self.wire_share / cable.bytes_per_second if cable else 0.0
        delay = (cable.delay_seconds or 0.0) if cable else 0.0
        host = 0.0 if self.overlap == "wire" else self.host_seconds
        return NetworkLink(
            latency_seconds=self.latency_seconds + self.message_delays * delay,
            bytes_per_second=1 / max(host + wire, 1e-15),
        )


@dataclass(frozen=True, kw_only=True)
class ConstantsFit:
    """The result of a fit.

    Attributes:
        constants: the best ones.
        standard_errors: of the fitted constants, by least squares; NaN if the steps do not determine one. Constants
            without an entry were assumed.
        errors: `overlap` -> root mean square of the relative error of the steps at the best other constants.
    """

    constants: Constants
    standard_errors: Mapping[str, float]
    errors: Mapping[Overlap, float]


def seconds_of(job: Job) -> float:
    """Return the time of a step without exchange."""
    return job.ready_seconds[-1] + job.optimizer_seconds


def typical(jobs: Sequence[Job]) -> Job:
    """Return a job whose parts are the medians of those of `jobs`, all of one batch size."""
    assert len({(job.local_batch, job.layer_bytes) for job in jobs}) == 1
    forward, *backward, optimizer = np.median([_parts(job) for job in jobs], axis=0).tolist()
    return replace(jobs[0], forward_seconds=forward, backward_seconds=tuple(backward), optimizer_seconds=optimizer)


def typical_seconds(steps: Sequence[StepTimings], fitted_batches: Sequence[int]) -> dict[tuple[int, str | int], float]:
    """Return (local batch, way) -> median over all turns of the time until the slowest rank is done.

    Each turn is scaled to the pace of the median turn. Its pace is the geometric mean of the steps without exchange at
    the batch sizes of the fit.
    """
    slowest = {(entry.local_batch, entry.way): np.max(entry.seconds, axis=0) for entry in steps}
    paces = [np.log(slowest[batch, way]) for batch in fitted_batches for way in (ALONE, WITHOUT)]
    pace = np.exp(np.mean(paces, axis=0))
    return {setting: float(np.median(seconds / pace) * np.median(pace)) for setting, seconds in slowest.items()}


def in_seconds(job: Job, seconds: float) -> Job:
    """Scale all parts of a job by one factor, so that a step takes `seconds`."""
    factor = seconds / seconds_of(job)
    forward, *backward, optimizer = (factor * part for part in _parts(job))
    return replace(job, forward_seconds=forward, backward_seconds=tuple(backward), optimizer_seconds=optimizer)


def _parts(job: Job) -> tuple[float, ...]:
    return (job.forward_seconds, *job.backward_seconds, job.optimizer_seconds)


class Jobs:
    """A rank's steps without exchange at any local batch: each part is a line through the measured ones."""

    def __init__(self, measured: Sequence[Job]) -> None:
        batches = sorted({job.local_batch for job in measured})
        assert len(batches) >= 2, "a line takes two batch sizes"
        middle = [typical([job for job in measured if job.local_batch == batch]) for batch in batches]
        assert all(job.layer_bytes == middle[0].layer_bytes for job in middle)
        self._like = middle[0]
        parts = np.array([_parts(job) for job in middle])
        self._lines = np.polyfit(np.array(batches, dtype=np.float64), parts, 1)

    def at(self, local_batch: int) -> Job:
        """Return the job at a local batch; no part takes less than 0 seconds."""
        slope, start = self._lines
        forward, *backward, optimizer = np.maximum(start + slope * local_batch, 0.0).tolist()
        return replace(
            self._like,
            local_batch=local_batch,
            forward_seconds=forward,
            backward_seconds=tuple(backward),
            optimizer_seconds=optimizer,
        )


def predicted_seconds(setting: MeasuredSetting, constants: Constants) -> float:
    """Return the predicted time of a step; ranks are nodes of one GPU, and gloo's all-reduce is a ring of two."""
    pair = Machine(nodes=RANKS, gpus_per_node=1, intra_node=NO_LINK, inter_node=constants.link(setting.cable))
    job = setting.job
    if constants.overlap == "wire" and setting.ranks > 1:
        job = _with_host_work(job, constants.host_seconds)
    communication = CommunicationModel(
        algorithm="ring",
        bucket_bytes=MIB * (setting.bucket_mib or 1),
        overlap=constants.overlap != "nothing",
        compression=1.0,
        negotiation=None,
        # Torch's default size comes with torch's default first bucket.
        first_bucket_bytes=MIB if setting.bucket_mib == CommConfig().bucket_mib else None,
    )
    return simulate_step(pair, job, communication, setting.ranks).seconds


def _with_host_work(job: Job, host_seconds: float) -> Job:
    """Return a job whose backward pass waits while the rank sends: in a ring of two each byte once."""
    backward = [
        seconds + host_seconds * n_bytes for seconds, n_bytes in zip(job.backward_seconds, job.layer_bytes, strict=True)
    ]
    return replace(job, backward_seconds=tuple(backward))


def starting_constants(points: Mapping[Cable | None, Sequence[AllReduceTiming]]) -> Constants:
    """Return constants from all-reduces alone, by cable, as `simulate --fit` does; the cores have no other work.

    Raises:
        ValueError: the all-reduces do not determine latency and bandwidth.
    """
    links = {cable: fit(timings, "ring", hold_out="n_bytes").link for cable, timings in points.items()}
    wires = [1 / cable.bytes_per_second if cable else 0.0 for cable in links]
    delays = [(cable.delay_seconds or 0.0) if cable else 0.0 for cable in links]
    host, wire = _line([1 / link.bytes_per_second for link in links.values()], wires)
    latency, message_delays = _line([link.latency_seconds for link in links.values()], delays)
    return Constants(
        latency_seconds=latency, host_seconds=host, wire_share=wire, message_delays=message_delays, overlap="all"
    )


def _line(values: Sequence[float], units: Sequence[float]) -> tuple[float, float]:
    """Return intercept and slope, both at least 0, of values over units; slope 1 if all units are equal."""
    scale = max(values)
    if scale == 0:
        return 0.0, 1.0
    if len(set(units)) == 1:
        return max(0.0, float(np.mean(values)) - units[0]), 1.0
    start, slope = nnls(np.column_stack([np.ones(len(units)), np.array(units) / scale]), np.array(values) / scale)[0]
    return float(start * scale), float(slope)


def fit_constants(settings: Sequence[MeasuredSetting], start: Constants) -> ConstantsFit:
    """Fit by least squares of the relative error of steps on two ranks, with the best `overlap`."""
    fitted = [setting for setting in settings if not setting.held_out and setting.ranks == RANKS]
    assert fitted
    cables = [setting.cable for setting in fitted if setting.cable]
    # Scales of constants that may be fitted to 0: at least a microsecond, at most 10 GB/s.
    scales = {
        "latency_seconds": max(start.latency_seconds, 1e-6),
        "host_seconds": max(start.host_seconds, 1e-10),
    }
    if len({cable.bytes_per_second for cable in cables}) > 1:
        scales["wire_share"] = max(start.wire_share, 1.0)
    if len({cable.delay_seconds for cable in cables}) > 1:
        scales["message_delays"] = max(start.message_delays, 1.0)

    def constants_of(units: NDArray[np.float64], overlap: Overlap) -> Constants:
        fitted_values = {name: float(unit * scale) for unit, (name, scale) in zip(units, scales.items(), strict=True)}
        return Constants(**{"wire_share": 1.0, "message_delays": 1.0, **fitted_values}, overlap=overlap)

    def errors(units: NDArray[np.float64], overlap: Overlap) -> list[float]:
        constants = constants_of(units, overlap)
        return [predicted_seconds(setting, constants) / setting.seconds - 1 for setting in fitted]

    # Overlap with the backward pass makes the error piecewise flat, so that a single start may not move.
    fits = {
        overlap: min(
            (
                least_squares(errors, np.full(len(scales), unit), bounds=(0, np.inf), args=(overlap,))
                for unit in _STARTS
            ),
            key=lambda result: float(result.cost),
        )
        for overlap in get_args(Overlap)
    }
    best = min(fits, key=lambda overlap: float(fits[overlap].cost))
    spreads = standard_errors(fits[best].jac, fits[best].fun)
    return ConstantsFit(
        constants=constants_of(fits[best].x, best),
        standard_errors={name: spread * scale for spread, (name, scale) in zip(spreads, scales.items(), strict=True)},
        errors={overlap: float(np.sqrt(np.mean(np.square(result.fun)))) for overlap, result in fits.items()},
    )


def standard_errors(jacobian: NDArray[np.float64], residuals: NDArray[np.float64]) -> list[float]:
    """Return the standard errors of least squares.

    Args:
        jacobian: (points, constants).
        residuals: (points,).

    Returns:
        One per constant. NaN for a constant that moves no residual, and for all if some move them in the same way.
    """
    n_points, n_constants = jacobian.shape
    lengths = np.linalg.norm(jacobian, axis=0)
    moves = lengths > _NO_EFFECT
    spreads = np.full(n_constants, np.nan)
    moving_columns = jacobian[:, moves]
    degrees = n_points - moving_columns.shape[1]
    if (
        degrees > 0
        and np.linalg.matrix_rank(moving_columns / lengths[moves], tol=_SAME_DIRECTION) == moving_columns.shape[1]
    ):
        variance = float(residuals @ residuals) / degrees
        spreads[moves] = np.sqrt(variance * np.diag(np.linalg.inv(moving_columns.T @ moving_columns)))
    return [float(spread) for spread in spreads]


def rows_of(settings: Sequence[MeasuredSetting], constants: Constants) -> list[dict[str, object]]:
    """Return measured and predicted efficiencies in percent, and their difference in points.

    Each efficiency is relative to a single rank of the same launch: a machine that was slower then was slower in both.
    """
    rows: list[dict[str, object]] = []
    for setting in settings:
        measured_percent = 100 * setting.local_batch / setting.seconds / setting.reference
        predicted_percent = 100 * setting.local_batch / predicted_seconds(setting, constants) / setting.reference
        rows.append(
            {
                "ranks": setting.ranks,
                "local_batch": setting.local_batch,
                "bucket_mib": setting.bucket_mib,
                "mbit_per_second": 8e-6 * setting.cable.bytes_per_second if setting.cable else None,
                "delay_ms": 1e3 * (setting.cable.delay_seconds or 0.0) if setting.cable else None,
                "held_out": setting.held_out,
                "measured_efficiency": measured_percent,
                "predicted_efficiency": predicted_percent,
                "error_points": predicted_percent - measured_percent,
            }
        )
    return rows
