"""The summary's numbers as tables of text, units in their heads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.reporting.wording import (
    NOTHING,
    count,
    image_interval,
    number,
    percent,
    percent_interval,
    plural,
    points,
    points_interval,
    spread,
)
from pipeline.stats import Estimate


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a page or a document shows.

    Attributes:
        columns: heads; those in `text` are left-aligned, the others hold numbers.
        rows: as many cells each as there are columns.
    """

    columns: Sequence[str]
    text: frozenset[str]
    rows: Sequence[Sequence[str]]


def kept_table(networks: Sequence[Mapping[str, Any]]) -> Table:
    """The paper's Table I beside this run's shares."""
    rows = [
        (
            network["name"],
            count(network["n"]),
            count(network["n_kept"]),
            percent(network["kept_share"]),
            percent(1 - network["kept_share"]),
            percent(network["paper_kept_share"]),
            network["scorer"],
            number(network["eps"]),
            _rule(network),
            count(network["n_by_hand"]),
        )
        for network in networks
    ]
    return _table(
        "network; images; kept; kept (%); dropped (%); paper, CIFAR-10: kept (%); scorer; threshold; "
        "how the share came about; changed by hand (images)",
        rows,
        text="network; scorer; how the share came about",
    )


def agreement_table(agreements: Sequence[Mapping[str, Any]]) -> Table:
    """Pairs of filters."""
    rows = [(row["first"], row["second"], number(row["jaccard"]), number(row["chance"])) for row in agreements]
    return _table("filter; other filter; Jaccard index of what goes; by chance", rows, text="filter; other filter")


def extractor_table(networks: Sequence[Mapping[str, Any]], confidence: float) -> Table:
    """Extractors on the test images, and how faithful their maps are."""
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
    return _table(
        f"network; test top-1 (%); {100 * confidence:g} % interval (%); balanced accuracy (%); "
        "variance in PCA (%); KL divergence of the map (nats); neighbours preserved (%); "
        "label = vote of neighbours, PCA (%); label = vote of neighbours, map (%)",
        rows,
        text="network",
    )


def accuracy_table(study: Mapping[str, Any], confidence: float) -> Table:
    """Top-1 of each arm at each setting."""
    rows = []
    for row in study["accuracy"]:
        estimate = Estimate(**row["top1"]) if row["top1"] else None
        n = estimate.n if estimate else 0
        rows.append(
            (
                *_setting_cells(row["setting"], study["varying"]),
                row["arm"],
                percent(estimate.mean) if estimate else NOTHING,
                spread(estimate.sd, scale=100) if estimate else NOTHING,
                percent_interval(estimate) if estimate else NOTHING,
                str(n) if n == row["planned"] else f"{n} of {row['planned']}",
                percent(row["balanced_accuracy"]),
                number(row["peak_learning_rate"]),
                count(row["n_train"]),
                count(row["steps"]),
                number(row["epochs"]),
            )
        )
    return _table(
        f"{_setting_heads(study['varying'])}; arm; top-1, mean (%); sd (points); {100 * confidence:g} % interval (%); "
        "n (seeds, or draws of the filter); balanced accuracy (%); peak learning rate; training images; steps; epochs",
        rows,
        text="model; arm",
    )


def difference_table(study: Mapping[str, Any], confidence: float) -> Table:
    """Filtered minus each control at each setting."""
    rows = []
    for row in study["differences"]:
        estimate = Estimate(**row["estimate"]) if row["estimate"] else None
        rows.append(
            (
                f"filtered − {row['control']}",
                *_setting_cells(row["setting"], study["varying"]),
                points(estimate.mean) if estimate else NOTHING,
                spread(estimate.sd) if estimate else NOTHING,
                points_interval(estimate) if estimate else NOTHING,
                str(estimate.n if estimate else 0),
            )
        )
    return _table(
        f"difference; {_setting_heads(study['varying'])}; mean (points); sd (points); "
        f"{100 * confidence:g} % interval (points); n (paired seeds, or draws)",
        rows,
        text="difference; model",
    )


def critical_batch_table(study: Mapping[str, Any]) -> Table:
    """Critical batch size of each arm at each setting that measured it."""
    rows = [
        (
            *_setting_cells(row["setting"], study["varying"]),
            row["arm"],
            NOTHING if row["median"] is None else count(round(row["median"])),
            image_interval(row["low"], row["high"]),
            str(row["n"]) if row["n"] == row["planned"] else f"{row['n']} of {row['planned']}",
        )
        for row in study["critical_batch"]
    ]
    return _table(
        f"{_setting_heads(study['varying'])}; arm; critical batch size, median (images); "
        "95 % intervals of the runs (images); n (seeds)",
        rows,
        text="model; arm",
    )


def excluded_table(study: Mapping[str, Any]) -> Table:
    """Cells that were skipped or that diverged."""
    rows = [
        (
            *_setting_cells(row["setting"], study["varying"]),
            row["arm"],
            row["status"],
            ", ".join(map(str, row["seeds"])),
            row["reason"],
        )
        for row in study["excluded"]
    ]
    heads = f"{_setting_heads(study['varying'])}; arm; status; seeds; reason"
    return _table(heads, rows, text="model; arm; status; seeds; reason")


def class_table(networks: Sequence[Mapping[str, Any]]) -> Table:
    """Share of each class that each network's filter drops."""
    heads = ["class", "images", *(f"{network['name']}: noise (%)" for network in networks)]
    rows = []
    for index, first in enumerate(networks[0]["classes"]):
        shares = [network["classes"][index]["n_noise"] / max(1, first["n"]) for network in networks]
        rows.append((first["class"], count(first["n"]), *(percent(share) for share in shares)))
    return Table(columns=heads, text=frozenset({"class"}), rows=rows)


def resource_table(resources: Mapping[str, Mapping[str, float]]) -> Table:
    """Time and memory of each stage's last run."""
    rows = [
        (
            stage,
            f"{record['wall_s']:,.1f}",
            f"{record['peak_memory_mb']:,.0f}",
            f"{record['images_per_s']:,.0f}" if "images_per_s" in record else NOTHING,
        )
        for stage, record in resources.items()
    ]
    return _table("stage; time (s); peak memory (MB); images/s", rows, text="stage")


def version_table(versions: Iterable[Mapping[str, Any]]) -> Table:
    """Packages, and which stages ran with which version where they differ."""
    rows = [
        (package, row["version"], ", ".join(row["stages"]) if len(group) > 1 else "all")
        for package, group in _by(versions, "package").items()
        for row in group
    ]
    return _table("package; version; stages", rows, text="package; version; stages")


def digest_table(digests: Iterable[Mapping[str, Any]]) -> Table:
    """What the results were computed from."""
    return _table("file; SHA-256", [(row["file"], row["sha256"]) for row in digests], text="file; SHA-256")


def common_settings(study: Mapping[str, Any]) -> str:
    """The parts of the setting that all cells share, e.g. `resnet18, learning rate 0.05`."""
    first = study["accuracy"][0]["setting"]
    fixed = [name for name in ("model", "learning_rate", "weight_decay") if name not in study["varying"]]
    named = [first["model"] if name == "model" else f"{name.replace('_', ' ')} {first[name]}" for name in fixed]
    return ", ".join([*named, plural(study["n_cells"], "cell")])


def _by(rows: Iterable[Mapping[str, Any]], key: str) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _rule(network: Mapping[str, Any]) -> str:
    if network["requested_drop_share"] is None:
        return "found: the threshold was given"
    requested = f"requested: {percent(network['requested_drop_share'])} % dropped, threshold computed"
    return f"{requested}; {network['share_note']}" if network["share_note"] else requested


def _setting_heads(varying: Sequence[str]) -> str:
    return "; ".join([*(name.replace("_", " ") for name in varying), "batch size"])


def _setting_cells(setting: Mapping[str, Any], varying: Sequence[str]) -> list[str]:
    return [*(str(setting[name]) for name in varying), count(setting["batch_size"])]


def _table(heads: str, rows: Sequence[Sequence[str]], *, text: str) -> Table:
    return Table(columns=heads.split("; "), text=frozenset(text.split("; ")), rows=rows)
