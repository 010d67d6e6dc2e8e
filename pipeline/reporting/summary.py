"""Every number of the report as one tree of plain values, `summary.json`.

Shares and accuracies are 0 to 1, differences are percentage points of top-1. Tables and curves are
lists, which `dvc metrics` leaves out: what it shows is the headline.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.config.networks import architecture_of
from pipeline.reporting import paper
from pipeline.reporting.agreement import agreements
from pipeline.reporting.comparisons import (
    arm_accuracies,
    controls_of,
    differences,
    pooled,
    settings_of,
)
from pipeline.reporting.critical_batch import critical_batches
from pipeline.reporting.inputs import NetworkInputs, ReportInputs, StudyInputs
from pipeline.reporting.runs import Run, Setting, describe, varying_fields
from pipeline.reporting.wording import pooled_sentence
from pipeline.stats import Estimate, wilson_interval

Summary = dict[str, Any]


def build_summary(inputs: ReportInputs) -> Summary:
    """The headline, and all tables and curves of the report."""
    confidence = inputs.params.report.confidence
    networks = [_network(network, inputs) for network in inputs.networks]
    studies = [_study(study, confidence) for study in inputs.studies]
    return {
        **_headline(networks, studies),
        "data": [_data(inputs)],
        "networks": networks,
        "agreements": agreements(inputs.networks),
        "studies": studies,
        "versions": [
            {"package": package, "version": version, "stages": stages}
            for package, versions in inputs.versions.items()
            for version, stages in versions.items()
        ],
        "digests": [{"file": file, "sha256": digest} for file, digest in inputs.digests.items()],
    }


def _headline(networks: list[Summary], studies: list[Summary]) -> Summary:
    """The few numbers to compare between two experiments."""
    return {
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


def _data(inputs: ReportInputs) -> Summary:
    return {
        "dataset": inputs.params.prepare.dataset,
        "image_size": inputs.data.image_size,
        "n_train": len(inputs.data.train.labels),
        "n_test": len(inputs.data.test.labels),
        "n_classes": len(inputs.data.class_names),
    }


def _network(network: NetworkInputs, inputs: ReportInputs) -> Summary:
    n_test, variance = len(inputs.data.test.labels), network.reduce["pca"]
    top1 = float(network.finetune["top1"])
    low, high = wilson_interval(round(top1 * n_test), n_test, inputs.params.report.confidence)
    scorer = network.filter["settings"]["scorer"]
    return {
        "name": network.name,
        "n": len(network.keep),
        "n_kept": int(network.keep.sum()),
        "kept_share": float(network.keep.mean()),
        "noise_share": float(network.is_noise.mean()),
        "n_by_hand": int((network.keep == network.is_noise).sum()),
        "requested_drop_share": network.filter["requested_share"],
        "share_note": network.filter["share_note"],
        "scorer": scorer["name"],
        "space": scorer.get("space"),
        "eps": network.filter["eps"],
        "paper_kept_share": paper.KEPT_SHARES.get(architecture_of(network.name)),
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


def _classes(network: NetworkInputs, class_names: Sequence[str]) -> list[Summary]:
    totals, noise, dropped = (
        np.bincount(network.labels[rows], minlength=len(class_names))
        for rows in (slice(None), network.is_noise, ~network.keep)
    )
    return [
        {
            "class": name,
            "n": int(n),
            "n_noise": int(grey),
            "n_dropped": int(gone),
            "dropped_share": int(gone) / max(1, int(n)),
        }
        for name, n, grey, gone in zip(class_names, totals, noise, dropped, strict=True)
    ]


def _study(inputs: StudyInputs, confidence: float) -> Summary:
    runs, controls = inputs.runs, controls_of(inputs.runs)
    varying = varying_fields(settings_of(runs))
    statuses = Counter(run.status for run in runs)
    comparisons = [pooled(runs, control, confidence) for control in controls]
    return {
        "name": inputs.name,
        "n_cells": len(runs),
        "n_skipped": statuses["skipped"],
        "n_diverged": statuses["diverged"],
        "varying": list(varying),
        "accuracy": [
            {
                **_named(row.setting, varying, row.arm),
                **asdict(row),
                "setting": row.setting._asdict(),
                "top1": _estimate(row.top1),
            }
            for row in arm_accuracies(runs, confidence)
        ],
        "differences": [
            {
                **_named(row.setting, varying),
                "setting": row.setting._asdict(),
                "control": row.control,
                "estimate": _estimate(row.estimate),
            }
            for control in controls
            for row in differences(runs, control, confidence)
        ],
        "pooled": [
            {**asdict(row), "estimate": _estimate(row.estimate), "sentence": pooled_sentence(row, confidence)}
            for row in comparisons
        ],
        "critical_batch": [
            {**_named(row.setting, varying, row.arm), **asdict(row), "setting": row.setting._asdict()}
            for row in critical_batches(runs)
        ],
        "excluded": _excluded(runs),
        "learning": _learning(runs, varying),
    }


def _named(setting: Setting, varying: Iterable[str], arm: str | None = None) -> dict[str, str]:
    """`variant`, what beside arm and batch size tells a row from others, and a full `label`."""
    variant = describe(setting, varying)
    parts = [arm, f"batch {setting.batch_size}", variant]
    return {"variant": variant, "label": ", ".join(part for part in parts if part)}


def _estimate(estimate: Estimate | None) -> Summary | None:
    return asdict(estimate) if estimate else None


def _excluded(runs: Sequence[Run]) -> list[Summary]:
    """Cells without a result, seeds of one setting, arm and reason together."""
    groups: dict[tuple[Setting, str, str, str], list[int]] = defaultdict(list)
    for run in runs:
        if not run.finished:
            groups[run.setting, run.arm, run.status, run.reason].append(run.seed)
    return [
        {"setting": setting._asdict(), "arm": arm, "status": status, "reason": reason, "seeds": sorted(seeds)}
        for (setting, arm, status, reason), seeds in groups.items()
    ]


def _learning(runs: Sequence[Run], varying: Iterable[str]) -> list[Summary]:
    """Mean training loss of the finished seeds of each setting and arm, where all of them recorded it."""
    groups: dict[tuple[Setting, str], list[dict[int, float]]] = defaultdict(list)
    for run in runs:
        if run.finished:
            groups[run.setting, run.arm].append(dict(run.history))
    curves = []
    for (setting, arm), histories in sorted(groups.items()):
        shared = sorted(set.intersection(*(set(history) for history in histories)))
        curves.append(
            {
                "variant": describe(setting, varying),
                "batch_size": setting.batch_size,
                "arm": arm,
                "n": len(histories),
                "examples": shared,
                "train_loss": [float(np.mean([history[at] for history in histories])) for at in shared],
            }
        )
    return curves
