"""Tables of the report as text, with units in the column headers; time, memory and energy of the arms of studies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.energy import DEVICE_KINDS, UNKNOWN_ENERGY, Energy, total_energy
from pipeline.reporting.inputs import StudyInputs
from pipeline.stats.formatting import MISSING, count, number, percent
from pipeline.stats.replicates import TREATED
from pipeline.stats.runs import Run
from pipeline.stats.tables import Table, make_table

_HEADS = {"gpu": "GPU energy", "cpu": "CPU energy", "memory": "memory energy"}
_KILOJOULES_FROM = 10_000.0
"""Joules from which on a table is in kilojoules."""

Records = Mapping[str, Mapping[str, Any]]
"""Stage as DVC names it -> time, memory and energy of its last run."""

_CHOOSING = ("finetune", "extract", "reduce", "filter")

_SEARCHED = {"knee": "searched: knee of the k-distances", "tuned": "searched: tuned on planted images"}


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
        choosing: fine-tuning, extraction, embedding and scoring for all filter replicates; 0 for arms that the filter
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


def kept_table(networks: Sequence[Mapping[str, Any]], *, table_one: bool) -> Table:
    """Build the table of kept images.

    Args:
        table_one: whether to add the shares of the paper's Table I, and those of DBSCAN at its library's defaults.
    """
    rows = [
        (
            network["name"],
            count(network["n"]),
            count(network["n_kept"]),
            percent(network["kept_share"]),
            percent(1 - network["kept_share"]),
            *(percent(network[key]) for key in ("paper_kept_share", "default_kept_share") if table_one),
            network["scorer"],
            number(network["eps"]),
            _share_origin(network),
            count(network["n_by_hand"]),
        )
        for network in networks
    ]
    published = "paper, CIFAR-10: kept (%); at DBSCAN's defaults, eps 0.5: kept (%); " if table_one else ""
    return make_table(
        f"network; images; kept; kept (%); dropped (%); {published}scorer; threshold; "
        "origin of the share; changed by hand (images)",
        rows,
        text="network; scorer; origin of the share",
    )


def agreement_table(agreements: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table of pairs of filters."""
    rows = [(row["first"], row["second"], number(row["jaccard"]), number(row["chance"])) for row in agreements]
    return make_table(
        "filter; other filter; Jaccard index of the dropped images; by chance", rows, text="filter; other filter"
    )


def extractor_table(networks: Sequence[Mapping[str, Any]], confidence: float) -> Table:
    """Build the table of extractors: accuracy on the test images, and quality of their embeddings."""
    rows = [
        (
            network["name"],
            percent(network["top1"]),
            f"{percent(network['top1_low'])} to {percent(network['top1_high'])}",
            percent(network["balanced_accuracy"]),
            percent(network["explained_variance_ratio"], 1),
            number(network["kl_divergence"]),
            percent(network["neighbour_preservation"], 1),
            percent(network["knn_label_accuracy"]["components"], 1),
            percent(network["knn_label_accuracy"]["map"], 1),
        )
        for network in networks
    ]
    return make_table(
        f"network; test top-1 (%); {100 * confidence:g} % interval (%); balanced accuracy (%); "
        "variance in PCA (%); KL divergence of the embedding (nats); neighbors preserved (%); "
        "label = vote of neighbors, PCA (%); label = vote of neighbors, embedding (%)",
        rows,
        text="network",
    )


def class_table(networks: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table of the share of each class that each network's filter calls noise."""
    headers = ["class", "images", *(f"{network['name']}: noise (%)" for network in networks)]
    rows = []
    for index, first in enumerate(networks[0]["classes"]):
        shares = [network["classes"][index]["n_noise"] / max(1, first["n"]) for network in networks]
        rows.append((first["class"], count(first["n"]), *(percent(share) for share in shares)))
    return Table(columns=headers, text=frozenset({"class"}), rows=rows)


def cost_table(costs: Sequence[ArmCost]) -> Table:
    """Build the table of the total cost of each arm."""
    parts = ("choosing", "training", "total")
    energy = EnergyColumns([getattr(cost, part).joules for cost in costs for part in parts])
    rows = [
        (
            cost.study,
            cost.arm,
            count(cost.runs),
            *(cell for part in parts for cell in _cost_cells(getattr(cost, part), energy)),
            MISSING if cost.choosing_in_runs is None else f"{cost.choosing_in_runs:.2g}",
            _megabytes(cost.memory_mb),
            _megabytes(cost.gpu_memory_mb),
        )
        for cost in costs
    ]
    headers = "; ".join(f"{part}: {header}" for part in parts for header in ("images", "time (s)", *energy.headers))
    return make_table(
        f"study; arm; runs; {headers}; choosing, in runs of the arm; peak memory (MB); peak GPU memory (MB)",
        rows,
        text="study; arm",
    )


def _cost_cells(cost: RunCost, energy: EnergyColumns) -> list[str]:
    time = MISSING if cost.seconds is None else f"{cost.seconds:,.1f}"
    return [count(cost.images), time, *energy.cells(cost.joules)]


def _megabytes(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def resource_table(resources: Records) -> Table:
    """Build the table of time, energy and memory of each stage's last run."""
    joules = {stage: Energy.from_record(record.get("joules")) for stage, record in resources.items()}
    energy = EnergyColumns(list(joules.values()))
    rows = [
        (
            stage,
            f"{record['wall_s']:,.1f}",
            *energy.cells(joules[stage]),
            _megabytes(record.get("peak_memory_mb")),
            _megabytes(record.get("peak_gpu_memory_mb")),
            f"{record['images_per_s']:,.0f}" if "images_per_s" in record else MISSING,
            record.get("python", MISSING),
        )
        for stage, record in resources.items()
    ]
    headers = "; ".join(["time (s)", *energy.headers])
    columns = f"stage; {headers}; peak memory (MB); peak GPU memory (MB); images/s; Python"
    return make_table(columns, rows, text="stage; Python")


def version_table(versions: Iterable[Mapping[str, Any]]) -> Table:
    """Build the table of package versions, by stage if they differ."""
    rows = [
        (package, row["version"], ", ".join(row["stages"]) if len(group) > 1 else "all")
        for package, group in _by(versions, "package").items()
        for row in group
    ]
    return make_table("package; version; stages", rows, text="package; version; stages")


def digest_table(digests: Iterable[Mapping[str, Any]]) -> Table:
    """Build the table of what the results were computed from."""
    return make_table("file; SHA-256", [(row["file"], row["sha256"]) for row in digests], text="file; SHA-256")


def _by(rows: Iterable[Mapping[str, Any]], key: str) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _share_origin(network: Mapping[str, Any]) -> str:
    if network["requested_drop_share"] is None:
        return _SEARCHED[network["eps_searched"]] if network["eps_searched"] else "measured: at the given threshold"
    requested = f"requested: {percent(network['requested_drop_share'])} % dropped, threshold computed"
    if estimate := network["wrong_share"]:
        wrong, joint = (_interval(estimate[key]) for key in ("extrapolated", "confident_joint"))
        requested = f"estimated wrong labels: {wrong}; by the confident joint {joint}"
    return f"{requested}; {network['share_note']}" if network["share_note"] else requested


def _interval(estimate: Mapping[str, float]) -> str:
    share, low, high = (percent(estimate[key]) for key in ("share", "low", "high"))
    return f"{share} % ({low} to {high} %)"
