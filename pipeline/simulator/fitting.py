"""Fit latency and bandwidth of a link to measured all-reduce times, which JSON files hold."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from scipy.optimize import nnls

from pipeline.config.base import Int, Positive, PositiveFloat, Section, describe_validation_error
from pipeline.errors import InputError
from pipeline.simulator.machine import NetworkLink
from pipeline.simulator.model import ring_seconds, tree_seconds

Algorithm = Literal["ring", "tree"]

_FORMULAS: dict[Algorithm, Callable[[float, int, NetworkLink], float]] = {"ring": ring_seconds, "tree": tree_seconds}
# Links on which the formulas give the factor of one second of latency, and of one second per byte.
_UNITS = (
    NetworkLink(latency_seconds=1.0, bytes_per_second=math.inf),
    NetworkLink(latency_seconds=0.0, bytes_per_second=1.0),
)


class AllReduceRecord(Section):
    """A measured all-reduce of `n_bytes` over `workers` in `seconds`, as a file has it."""

    n_bytes: Positive
    workers: Annotated[Int, Field(ge=2)]
    seconds: PositiveFloat


class AllReduceRecords(Section):
    """Measurements over links of one kind: on one node, or with one worker on each node.

    Attributes:
        algorithm: that the library used.
    """

    algorithm: Algorithm
    points: Annotated[tuple[AllReduceRecord, ...], Field(min_length=2)]


def load_all_reduce_times(path: Path) -> AllReduceRecords:
    """Read and check a file of measured points.

    Raises:
        InputError: names the file, the key path, the value and the fix.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; use measured all-reduces in the format of docs/reference/files.md")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); write it again") from None
    try:
        return AllReduceRecords.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        raise InputError(f"{path}: {describe_validation_error(error, tree, AllReduceRecords)}") from None


class AllReduceTiming(NamedTuple):
    """A measured all-reduce: n_bytes > 0, workers >= 2, seconds > 0."""

    n_bytes: float
    workers: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """A fitted link and its errors.

    Attributes:
        algorithm: of the measured all-reduces; the link's latency is that of its hops.
        link: fitted to all measurements.
        relative_error: root mean square of (predicted - measured) / measured, over all measurements.
        held_out_error: the same by cross-validation: each number of workers, or each size, predicted from the others.
            It estimates the error at unmeasured points.
    """

    algorithm: Algorithm
    link: NetworkLink
    relative_error: float
    held_out_error: float


def fit(
    points: Sequence[AllReduceTiming],
    algorithm: Algorithm,
    *,
    hold_out: Literal["workers", "n_bytes"] = "workers",
) -> LinkFit:
    """Fit a link by non-negative least squares of the relative error, so that short and long messages count alike.

    The formulas are linear in the latency and in the seconds per byte.

    Args:
        points: over links of one kind: on one node, or with one worker on each node.
        algorithm: of the all-reduces.
        hold_out: groups for cross-validation.

    Raises:
        ValueError: the points do not determine both constants, or not without one of the groups.
    """
    groups = np.array([getattr(point, hold_out) for point in points])
    assert all(point.workers >= 2 and point.n_bytes > 0 and point.seconds > 0 for point in points), points
    if hold_out == "workers" and len(np.unique(groups)) < 2:
        raise ValueError("measure at least two numbers of workers, so that one can be predicted from the other")
    # (n_points, 2): seconds over measured seconds, for a latency of 1 s and for 1 s per byte.
    parts = np.array(
        [[_FORMULAS[algorithm](p.n_bytes, p.workers, unit) / p.seconds for unit in _UNITS] for p in points]
    )
    constants = _solve(parts)
    errors = np.empty(len(points))
    for value in np.unique(groups):
        held_out = groups == value
        errors[held_out] = parts[held_out] @ _solve(parts[~held_out]) - 1
    return LinkFit(
        algorithm=algorithm,
        link=NetworkLink(latency_seconds=float(constants[0]), bytes_per_second=float(1 / constants[1])),
        relative_error=_root_mean_square(parts @ constants - 1),
        held_out_error=_root_mean_square(errors),
    )


def _solve(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the constants (2,) with which `parts` (n_points, 2) sum to 1 for every point, in least squares."""
    # Seconds and seconds per byte differ by nine orders of magnitude.
    scale = np.linalg.norm(parts, axis=0)
    if np.linalg.matrix_rank(parts / scale) < 2:
        raise ValueError(
            "measure messages of more sizes: two with every number of workers, three where one is held out"
        )
    constants: NDArray[np.float64] = nnls(parts / scale, np.ones(len(parts)))[0] / scale
    if constants[1] == 0:
        raise ValueError("the times do not grow with the bytes; measure larger messages")
    return constants


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(values**2)))
