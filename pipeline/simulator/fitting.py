"""Constants of a machine, fitted to measured all-reduce times."""

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

# Files of measured all-reduces, to which the simulator's constants are fitted.


class AllReduceTime(Section):
    """One all-reduce of `n_bytes` over `workers` in `seconds`."""

    n_bytes: Positive
    workers: Annotated[Int, Field(ge=2)]
    seconds: PositiveFloat


class AllReduceTimes(Section):
    """Measured over links of one kind: on one node, or with one worker on each node.

    Attributes:
        algorithm: that the library used.
    """

    algorithm: Literal["ring", "tree"]
    points: Annotated[tuple[AllReduceTime, ...], Field(min_length=2)]


def load_all_reduce_times(path: Path) -> AllReduceTimes:
    """Read and check a file of measured points.

    Raises:
        InputError: naming the file, the key path, the value and the mend.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give measured all-reduces, in the form docs/reference/files.md shows")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); write it anew") from None
    try:
        return AllReduceTimes.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        raise InputError(f"{path}: {describe_validation_error(error, tree, AllReduceTimes)}") from None


# Latency and bandwidth of a link from measured all-reduces.


Algorithm = Literal["ring", "tree"]

_FORMULAS: dict[Algorithm, Callable[[float, int, NetworkLink], float]] = {"ring": ring_seconds, "tree": tree_seconds}
# What the formulas make of one second of latency and of one second a byte.
_UNITS = (
    NetworkLink(latency_seconds=1.0, bytes_per_second=math.inf),
    NetworkLink(latency_seconds=0.0, bytes_per_second=1.0),
)


class AllReduceTiming(NamedTuple):
    """One all-reduce: of so many bytes, > 0, over so many workers, >= 2, in so many seconds, > 0."""

    n_bytes: float
    workers: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """A link and how well it explains the measurements.

    Attributes:
        algorithm: of the all-reduces that were measured; the link's latency is that of its hops.
        link: of all measurements.
        relative_error: root mean square of (predicted - measured) / measured, over all measurements.
        held_out_error: the same, with each number of workers, or each size, predicted from the others: what the model
            is worth where nobody measured.
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
    """Least squares of the relative error, so that short and long messages count alike; neither constant negative.

    The formulas are linear in the latency and in the seconds of a byte.

    Args:
        points: over links of one kind: on one node, or with one worker on each node.
        hold_out: what is predicted from the others in turn.

    Raises:
        ValueError: the points do not determine both constants, or not without one of what is held out.
    """
    held = np.array([getattr(point, hold_out) for point in points])
    assert all(point.workers >= 2 and point.n_bytes > 0 and point.seconds > 0 for point in points), points
    if hold_out == "workers" and len(np.unique(held)) < 2:
        raise ValueError("measure at least two numbers of workers, so that one can be predicted from the other")
    # (n_points, 2): each constant's seconds over those measured, for a latency of 1 s and for 1 s a byte.
    parts = np.array(
        [[_FORMULAS[algorithm](p.n_bytes, p.workers, unit) / p.seconds for unit in _UNITS] for p in points]
    )
    constants = _solve(parts)
    errors = np.empty(len(points))
    for value in np.unique(held):
        held_out = held == value
        errors[held_out] = parts[held_out] @ _solve(parts[~held_out]) - 1
    return LinkFit(
        algorithm=algorithm,
        link=NetworkLink(latency_seconds=float(constants[0]), bytes_per_second=float(1 / constants[1])),
        relative_error=_root_mean_square(parts @ constants - 1),
        held_out_error=_root_mean_square(errors),
    )


def _solve(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The constants (2,) for which the parts (n_points, 2) of every point sum to 1 as nearly as can be."""
    # Seconds and seconds a byte differ by nine orders of magnitude.
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
