"""Whether the loss around the final weights is smoother in the treated arm, from measurements of single networks."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.stats.ratios import ratios
from pipeline.stats.runs import Run, settings_of


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Of one network's weights, by the loss of the same images for all networks.

    Attributes:
        loss: at the weights, in nats.
        eigenvalue: the largest of the loss's Hessian, in nats per squared unit of weight; None where its iteration
            did not converge.
        rise: mean of the loss on filter-normalised slices near the weights minus that at them, in nats.
    """

    loss: float
    eigenvalue: float | None
    rise: float


def landscape(runs: Sequence[Run], measured: Sequence[Surroundings | None], alpha: float) -> dict[str, Any]:
    """Each arm's means and the treated arm's ratios to each other one's, as plain values.

    Smaller eigenvalues and rises mean a smoother loss. Seeds of which no network was measured are left out; a setting
    in which one of the others is missing, or has a value that is not above 0, is no part of that value's ratio.

    Args:
        runs: of one study.
        measured: one for each of `runs`, None where there is none.
        alpha: level of the tests, in (0, 1).
    """
    seeds = {run.seed for run, value in zip(runs, measured, strict=True) if value}
    pairs = [(run, value) for run, value in zip(runs, measured, strict=True) if run.seed in seeds]
    kept = [run for run, _ in pairs]
    values = {
        "eigenvalue": [_positive(value.eigenvalue) if value else None for _, value in pairs],
        "rise": [_positive(value.rise) if value else None for _, value in pairs],
    }
    return {
        "seeds": sorted(seeds),
        "arms": list(_arms(pairs)),
        "ratios": {
            name: [
                {**asdict(ratio), "settings": [setting._asdict() for setting in ratio.settings]}
                for ratio in ratios(kept, found, alpha)
            ]
            for name, found in values.items()
        },
    }


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _arms(pairs: Sequence[tuple[Run, Surroundings | None]]) -> Iterator[dict[str, Any]]:
    """Of each setting and arm that was measured; means over its networks, each None where one has no value."""
    for setting in settings_of([run for run, _ in pairs]):
        for arm in dict.fromkeys(run.arm for run, _ in pairs):
            found = [value for run, value in pairs if value and run.setting == setting and run.arm == arm]
            if found:
                eigenvalues = [value.eigenvalue for value in found if value.eigenvalue is not None]
                yield {
                    "setting": setting._asdict(),
                    "arm": arm,
                    "n": len(found),
                    "loss": float(np.mean([value.loss for value in found])),
                    "eigenvalue": float(np.mean(eigenvalues)) if len(eigenvalues) == len(found) else None,
                    "rise": float(np.mean([value.rise for value in found])),
                }
