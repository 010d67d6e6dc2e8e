"""Choose the few metrics that `dvc metrics` and `dvc exp show` print."""

from collections.abc import Mapping
from typing import Any


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
