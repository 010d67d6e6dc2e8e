"""Time, memory and energy of the arms of studies, and the energy columns of tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.energy import DEVICE_KINDS, UNKNOWN_ENERGY, Energy, total_energy
from pipeline.reporting.inputs import StudyInputs
from pipeline.stats.formatting import MISSING
from pipeline.stats.replicates import TREATED
from pipeline.stats.runs import Run

_HEADS = {"gpu": "GPU energy", "cpu": "CPU energy", "memory": "memory energy"}
_KILOJOULES_FROM = 10_000.0
"""Joules from which on a table is in kilojoules."""


class EnergyColumns:
    """The energy columns of one table: one for each kind of device with a record, in one unit for the table.

    Args:
        energies: all energies of the table.
    """

    def __init__(self, energies: Sequence[Energy]) -> None:
        largest = {
            kind: max((getattr(energy, kind) or 0.0 for energy in energies), default=0.0) for kind in DEVICE_KINDS
        }
        # Work without a kind of device uses 0 J of it. Leave out columns of zeros.
        self._kinds = [kind for kind in DEVICE_KINDS if largest[kind] > 0]
        self._unit, self._joules = ("kJ", 1e3) if max(largest.values()) >= _KILOJOULES_FROM else ("J", 1.0)

    @property
    def headers(self) -> list[str]:
        """The column headers, kind and unit; empty without records."""
        return [f"{_HEADS[kind]} ({self._unit})" for kind in self._kinds]

    def cells(self, energy: Energy) -> list[str]:
        """Return one cell per header, with three significant digits, or all digits before the point."""
        return [_text(getattr(energy, kind), self._joules) for kind in self._kinds]


def _text(joules: float | None, unit: float) -> str:
    if joules is None:
        return MISSING
    value = joules / unit
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


Records = Mapping[str, Mapping[str, Any]]
"""Stage as DVC names it -> time, memory and energy of its last run."""

_CHOOSING = ("finetune", "extract", "reduce", "filter")


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of one part of the work, over all runs of an arm.

    Attributes:
        images: number of images that networks or the embedding processed; None if a record is missing.
        seconds: wall time; None if a record is missing.
        joules: energy of the devices; a kind is unknown if a record is missing or lacks it.
    """

    images: int | None
    seconds: float | None
    joules: Energy = UNKNOWN_ENERGY


@dataclass(frozen=True, kw_only=True)
class ArmCost:
    """The total cost of one arm of a study: choosing its images, and training on them.

    Attributes:
        runs: number of trained runs, without skipped ones.
        choosing: fine-tuning, extraction, embedding and scoring for all draws of the filter; 0 for arms that the filter
            does not choose.
        memory_mb: peak of the largest process of any of these stages; None without a record.
        gpu_memory_mb: the same for GPU memory; None without a record.
    """

    study: str
    arm: str
    runs: int
    choosing: RunCost
    training: RunCost
    memory_mb: float | None
    gpu_memory_mb: float | None

    @property
    def total(self) -> RunCost:
        return _sum([self.choosing, self.training])

    @property
    def choosing_in_runs(self) -> float | None:
        """The cost of choosing the images in units of the arm's runs, counted in images."""
        chosen, trained = self.choosing.images, self.training.images
        return chosen * self.runs / trained if chosen is not None and trained else None


def arm_costs(studies: Sequence[StudyInputs], records: Records) -> list[ArmCost]:
    """Return the costs of all arms of all studies, in their order.

    Training images are those of the runs' histories; times, energy and memory are those of `records`.
    """
    return [
        _arm_cost(study, arm, [run for run in study.runs if run.arm == arm], records)
        for study in studies
        for arm in dict.fromkeys(run.arm for run in study.runs)
    ]


def _arm_cost(study: StudyInputs, arm: str, runs: Sequence[Run], records: Records) -> ArmCost:
    training = f"train@{study.name}"
    networks = study.study.filter_networks if arm == TREATED else ()
    stages = [f"{stage}@{network}" for network in networks for stage in _CHOOSING]
    trained = [run for run in runs if run.history]
    return ArmCost(
        study=study.name,
        arm=arm,
        runs=len(trained),
        choosing=_sum(_cost(records.get(stage, {})) for stage in stages),
        training=RunCost(
            images=sum(run.history[-1][0] for run in trained),
            seconds=records.get(training, {}).get("arms_wall_s", {}).get(arm),
            joules=Energy.from_record(records.get(training, {}).get("arms_joules", {}).get(arm)),
        ),
        memory_mb=_peak(records, [*stages, training], "peak_memory_mb"),
        gpu_memory_mb=_peak(records, [*stages, training], "peak_gpu_memory_mb"),
    )


def _cost(record: Mapping[str, Any]) -> RunCost:
    joules = Energy.from_record(record.get("joules"))
    return RunCost(images=record.get("images"), seconds=record.get("wall_s"), joules=joules)


def _sum(costs: Iterable[RunCost]) -> RunCost:
    """Return the sum; a quantity is None if it is unknown for some part."""
    images, seconds, joules = 0, 0.0, []
    missing_images = missing_seconds = False
    for cost in costs:
        images, missing_images = images + (cost.images or 0), missing_images or cost.images is None
        seconds, missing_seconds = seconds + (cost.seconds or 0.0), missing_seconds or cost.seconds is None
        joules.append(cost.joules)
    return RunCost(
        images=None if missing_images else images,
        seconds=None if missing_seconds else seconds,
        joules=total_energy(joules),
    )


def _peak(records: Records, stages: Sequence[str], key: str) -> float | None:
    return max((records[stage][key] for stage in stages if key in records.get(stage, {})), default=None)
