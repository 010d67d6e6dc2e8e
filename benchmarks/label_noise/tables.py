"""Format the results of cases as tables, and summarize all cases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.label_noise.choices import COMPARISONS, NAMES
from benchmarks.label_noise.detection import MEASURES
from pipeline.artifacts.files import read_json, write_json
from pipeline.errors import InputError

TITLES = {
    "auroc": "AUROC",
    "average_precision": "avg_precision",
    # At as many images as there are wrong ones precision, recall and F1 are equal.
    "f1_at_true_share": "P=R=F1@true",
    "precision_at_5_percent": "P@5%",
    "recall_at_5_percent": "R@5%",
}


def heading(results: Mapping[str, Any]) -> str:
    """Return a line about the case, its extractor and its filter."""
    epochs = "a head alone" if results["epochs"] is None else f"{results['epochs']:.2f} epochs"
    seen = "out of fold" if results["folds"] > 1 else "in-sample"
    return (
        f"{results['case']}: {results['n_wrong']} of {results['n']} labels are wrong; {epochs}, top-1 "
        f"{results['test_top1']:.4f} on the test images; {seen} probabilities{_filter_words(results['filter'])}"
    )


def _filter_words(filtered: Mapping[str, Any] | None) -> str:
    """Return what the stage `filter` did; nothing if it has not run."""
    if filtered is None:
        return ""
    precision = "" if filtered["precision"] is None else f", {filtered['precision']:.1%} of them wrong"
    found = f"found {filtered['recall']:.1%} of the wrong ones"
    return f"; the filter dropped {filtered['n_dropped']}{precision}, and {found}"


def scorer_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a row per scorer."""
    return [
        {
            "case": results["case"],
            "scorer": name,
            **{TITLES[measure]: f"{scorer['measures'][measure]['value']:.4f}" for measure in MEASURES},
            "seconds": f"{scorer['seconds']:.1f}",
            "peak_MB": f"{scorer['peak_memory_mb']:.0f}",
        }
        for name in NAMES
        if (scorer := results["scorers"].get(name))
    ]


def advantage_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a row per comparison: the default minus the other scorer, with the 95 % interval."""
    return [
        {
            "case": results["case"],
            "default": results["default"],
            "less": name,
            **{TITLES[measure]: _with_interval(advantage[measure]) for measure in ("auroc", "f1_at_true_share")},
        }
        for name in COMPARISONS
        if (advantage := results["advantage"].get(name))
    ]


def summarize(work: Path) -> list[dict[str, str]]:
    """Write summary.json: the results of all cases in `work`, and each scorer's means over them.

    Returns:
        A row per scorer that ran in every case. Other scorers have no means.

    Raises:
        InputError: no case has results.
    """
    cases = [read_json(file) for file in sorted(work.glob("*/results.json"))]
    if not cases:
        raise InputError(f"--work: {work} has no results of a case; first run the benchmark without --summarize")
    # Without a wrong label there is nothing to find.
    scored = [case for case in cases if case["scorers"]]
    common = [name for name in NAMES if scored and all(name in case["scorers"] for case in scored)]
    means = {
        name: {
            measure: float(np.mean([case["scorers"][name]["measures"][measure]["value"] for case in scored]))
            for measure in MEASURES
        }
        for name in common
    }
    write_json(work / "summary.json", {"cases": cases, "means": means})
    return [
        {
            "cases": str(len(scored)),
            "scorer": name,
            **{TITLES[measure]: f"{value:.4f}" for measure, value in means[name].items()},
        }
        for name in common
    ]


def _with_interval(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:+.4f} [{interval['low']:+.4f}, {interval['high']:+.4f}]"
