"""Tables of the report's summary as text, with units in the column headers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.energy import Energy
from pipeline.reporting.costs import ArmCost, EnergyColumns, Records, RunCost
from pipeline.stats.formatting import MISSING, count, number, percent
from pipeline.stats.tables import Table, make_table

_SEARCHED = {"knee": "searched: knee of the k-distances", "tuned": "searched: tuned on planted images"}


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
    """Build the table of the share of each class that each network's filter drops."""
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
            _megabytes(record["peak_memory_mb"]),
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
