"""Build `summary.json`: every number of the report as one tree of plain values, and how well filters agree.

Shares and accuracies are 0 to 1, differences and margins are percentage points of top-1. A few of the numbers are the
metrics that `dvc metrics` and `dvc exp show` print.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from pipeline.config.extractors import base_architecture
from pipeline.replication import ClaimCriteria
from pipeline.replication.compare_published import claim_values, compare_with_published, slope_values
from pipeline.replication.published import CIFAR10, KEPT_SHARES
from pipeline.reporting.data_quality import planted_summary
from pipeline.reporting.inputs import NetworkInputs, ReportInputs, StudyInputs
from pipeline.reporting.warmup import warmup_laws
from pipeline.scoring.thresholds import jaccard, values_from_scores
from pipeline.stats import wilson_interval
from pipeline.stats.comparisons import comparisons
from pipeline.stats.per_class import image_values
from pipeline.stats.ratios import TargetQuantity, convergence
from pipeline.stats.study import study_summary

Summary = dict[str, Any]

DEFAULT_EPS, DEFAULT_MIN_SAMPLES = 0.5, 5
"""Defaults of scikit-learn's DBSCAN. The paper uses the "default values" of a library that it does not name."""


def agreements(networks: Sequence[NetworkInputs]) -> list[dict[str, Any]]:
    """Return the Jaccard index of the images dropped by each pair of filters, and that of chance, 0 to 1.

    These are the decisions of the filter, before overrides by hand. A further embedding of `reduce.extra_embeddings` is
    compared with the first one of its network.
    """
    return [*_between_networks(networks), *_between_embeddings(networks)]


def _between_networks(networks: Sequence[NetworkInputs]) -> Iterable[dict[str, Any]]:
    for left, right in combinations(networks, 2):
        shares = float(left.is_noise.mean()), float(right.is_noise.mean())
        yield {
            "first": left.name,
            "second": right.name,
            "jaccard": jaccard(left.is_noise, right.is_noise),
            "chance": _chance(*shares),
        }


def _between_embeddings(networks: Sequence[NetworkInputs]) -> Iterable[dict[str, Any]]:
    for network in networks:
        share = float(network.is_noise.mean())
        for index, value in enumerate(network.filter["stability_over_maps"], start=1):
            yield {
                "first": network.name,
                "second": f"{network.name}, embedding {index} of reduce.extra_embeddings",
                "jaccard": float(value),
                "chance": _chance(share, share),
            }


def _chance(left: float, right: float) -> float:
    """Return the expected Jaccard index of two independent random sets with these shares of many images."""
    either = left + right - left * right
    return left * right / either if either else 1.0


def build_summary(inputs: ReportInputs) -> Summary:
    """Return the headline, and all tables and curves of the report."""
    networks = [_network(network, inputs) for network in inputs.networks]
    studies = [_study(study, inputs) for study in inputs.studies]
    planted = planted_summary(inputs)
    return {
        **_headline(networks, studies, planted),
        "data": [_data(inputs)],
        "planted": planted,
        "networks": networks,
        "agreements": agreements(inputs.networks),
        "studies": studies,
        "sentences": _claims(inputs),
        "warmup_laws": warmup_laws(inputs.studies, inputs.params.train, inputs.params.report.confidence),
        "versions": [
            {"package": package, "version": version, "stages": stages}
            for package, versions in inputs.versions.items()
            for version, stages in versions.items()
        ],
        "digests": [{"file": file, "sha256": digest} for file, digest in inputs.digests.items()],
    }


def is_about_table_one(summary: Summary) -> bool:
    """Return whether table I of Gahlot et al. is about these images: CIFAR-10, by its name or by a study's figure."""
    figures = [study["published"] for study in summary["studies"] if study["published"]]
    return summary["data"][0]["dataset"] == "cifar10" or any(figure["data"] == CIFAR10 for figure in figures)


def _headline(networks: list[Summary], studies: list[Summary], planted: list[Summary]) -> Summary:
    """Return the few numbers to compare between two experiments."""
    recalls = {network["name"]: network["recall"] for entry in planted for network in entry["networks"]}
    return {
        **({"wrong_labels_found": recalls} if recalls else {}),
        "verdict": {
            study["name"]: {
                f"filtered_against_{row['control']}": row["verdict"]["outcome"]
                for row in study["pooled"]
                if row["verdict"]
            }
            for study in studies
        },
        "kept_share": {network["name"]: network["kept_share"] for network in networks},
        "extractor_top1": {network["name"]: network["top1"] for network in networks},
        "top1": {
            study["name"]: {row["label"]: row["top1"]["mean"] for row in study["accuracy"] if row["top1"]}
            for study in studies
        },
        "difference_points": {
            study["name"]: {
                f"filtered_minus_{row['control']}": {key: row["estimate"][key] for key in ("mean", "low", "high", "n")}
                for row in study["pooled"]
                if row["estimate"]
            }
            for study in studies
        },
    }


def _claims(inputs: ReportInputs) -> list[Summary]:
    records = [record for study in inputs.studies for record in study.records]
    return claim_values(records, _claim_criteria(inputs.studies, inputs))


def _claim_criteria(studies: Sequence[StudyInputs], inputs: ReportInputs) -> ClaimCriteria:
    """Return the criteria for the runs of some studies; a study may stop at any of its looks, which share alpha."""
    report, looks = inputs.params.report, max((len(study.plan.looks) for study in studies), default=0)
    return ClaimCriteria(margin=report.margin / 100, alpha=report.alpha / max(1, looks))


def _data(inputs: ReportInputs) -> Summary:
    return {
        "dataset": inputs.params.prepare.dataset,
        "image_size": inputs.data.image_size,
        "n_train": len(inputs.data.train.labels),
        "n_test": len(inputs.data.test.labels),
        "n_classes": len(inputs.data.class_names),
    }


def _study(study: StudyInputs, inputs: ReportInputs) -> Summary:
    """Return a study's summary, with each comparison's values by test image, and the published numbers."""
    values = study_summary(study.name, study.runs, study.plan, x_axis=study.study.x_axis)
    labels, names, confidence = inputs.data.test.labels, inputs.data.class_names, inputs.params.report.confidence
    images = [
        image_values(comparison, study.correct, labels, names, confidence)
        for comparison in comparisons(study.runs, study.plan)
    ]
    pooled = [{**row, "images": image_row} for row, image_row in zip(values["pooled"], images, strict=True)]
    figure = study.study.paper_figure
    used = set(study.seeds_used)
    return {
        **values,
        "pooled": pooled,
        "batch_slopes": slope_values(study.records, _claim_criteria([study], inputs)),
        "published": None if figure is None else compare_with_published(figure, values["accuracy"]),
        "convergence": [
            convergence([run for run in study.runs if run.seed in used], quantity, target, study.plan.alpha)
            for quantity, target in _targets(study, inputs)
        ],
    }


def _targets(study: StudyInputs, inputs: ReportInputs) -> Iterator[tuple[TargetQuantity, float]]:
    """Return what was stated before the runs and is measured in them."""
    report = inputs.params.report
    if report.target_top1 is not None and study.study.accuracy_every is not None:
        yield "top1", report.target_top1
    if report.target_train_loss is not None:
        yield "train_loss", report.target_train_loss


def _network(network: NetworkInputs, inputs: ReportInputs) -> Summary:
    n_test, variance = len(inputs.data.test.labels), network.reduce["pca"]
    top1 = float(network.finetune["top1"])
    low, high = wilson_interval(round(top1 * n_test), n_test, inputs.params.report.confidence)
    scorer, eps = network.filter["settings"]["scorer"], network.filter["settings"]["eps"]
    # Files of earlier versions have no such keys.
    wrong_share, duplicates = network.filter.get("wrong_share"), network.filter.get("near_duplicates")
    return {
        "name": network.name,
        "n": len(network.keep),
        "n_kept": int(network.keep.sum()),
        "kept_share": float(network.keep.mean()),
        "noise_share": float(network.is_noise.mean()),
        "n_by_hand": int((network.keep == network.is_noise).sum()) - (duplicates["n_dropped"] if duplicates else 0),
        "requested_drop_share": network.filter["requested_share"],
        "wrong_share": wrong_share,
        "near_duplicates": duplicates,
        "share_note": network.filter["share_note"],
        "eps_searched": eps["name"] if isinstance(eps, dict) else eps if isinstance(eps, str) else None,
        "scorer": scorer["name"],
        "space": scorer.get("space"),
        "eps": network.filter["eps"],
        "default_kept_share": _default_kept_share(network),
        "paper_kept_share": KEPT_SHARES.get(base_architecture(network.name)),
        "top1": top1,
        "top1_low": low,
        "top1_high": high,
        "balanced_accuracy": network.finetune["balanced_accuracy"],
        "kl_divergence": network.reduce["kl_divergence"],
        "neighbour_preservation": network.reduce["neighbour_preservation"],
        "knn_label_accuracy": network.reduce["knn_label_accuracy"],
        "explained_variance_ratio": variance and variance["explained_variance_ratio"],
        "classes": _classes(network, inputs.data.class_names),
        "curve": network.filter["curve"],
    }


def _default_kept_share(network: NetworkInputs) -> float | None:
    """Return the share that DBSCAN on the embedding keeps at its library's defaults, from the release radii, 0 to 1.

    None for a filter whose values are not these radii.
    """
    scorer = network.filter["settings"]["scorer"]
    if (scorer["name"], scorer.get("space"), scorer.get("min_samples")) != ("dbscan", "embedding", DEFAULT_MIN_SAMPLES):
        return None
    return float((values_from_scores(network.score, network.threshold) <= DEFAULT_EPS).mean())


def _classes(network: NetworkInputs, class_names: Sequence[str]) -> list[Summary]:
    totals, noise, dropped = (
        np.bincount(network.labels[rows], minlength=len(class_names))
        for rows in (slice(None), network.is_noise, ~network.keep)
    )
    return [
        {
            "class": name,
            "n": int(n),
            "n_noise": int(n_noise),
            "n_dropped": int(n_dropped),
            "dropped_share": int(n_dropped) / max(1, int(n)),
        }
        for name, n, n_noise, n_dropped in zip(class_names, totals, noise, dropped, strict=True)
    ]


def chosen_metrics(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the primary comparison of each study, and the share of the images that each filter keeps.

    Names are short: a terminal of 80 columns shows them with a parameter or two.

    Args:
        summary: of the report.

    Returns:
        study -> `vs_<control>`, `low` and `high`: filtered minus the primary control and its interval, in percentage
        points of top-1; a study without this comparison is missing. And `kept` -> network -> share, 0 to 1.
    """
    metrics: dict[str, dict[str, float]] = {}
    for study in summary["studies"]:
        for row in study["pooled"]:
            if row["primary"] and row["estimate"]:
                estimate = row["estimate"]
                effect = {f"vs_{row['control']}": estimate["mean"], "low": estimate["low"], "high": estimate["high"]}
                # One seed has no interval.
                metrics[study["name"]] = {name: value for name, value in effect.items() if value is not None}
    # A study may have this name.
    metrics.setdefault("kept", {}).update(summary["kept_share"])
    return metrics
