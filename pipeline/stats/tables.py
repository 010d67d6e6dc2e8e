"""Tables of a study's results as text, with units in the column headers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import (
    MISSING,
    UNIT_NAMES,
    count,
    image_interval,
    margin_text,
    number,
    p_value,
    percent,
    percent_interval,
    plural,
    points,
    points_interval,
    span,
    spread,
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text.

    Attributes:
        columns: headers; those in `text` are left-aligned, the others contain numbers.
        rows: one cell per column.
    """

    columns: Sequence[str]
    text: frozenset[str]
    rows: Sequence[Sequence[str]]


def make_table(headers: str, rows: Sequence[Sequence[str]], *, text: str) -> Table:
    """Build a table from headers separated by `; `; `text` names those that are left-aligned."""
    return Table(columns=headers.split("; "), text=frozenset(text.split("; ")), rows=rows)


def accuracy_table(study: Mapping[str, Any], confidence: float) -> Table:
    """Build the table of top-1 of each arm at each setting."""
    rows, is_relabeled = [], any(row["n_relabeled"][1] for row in study["accuracy"])
    for row in study["accuracy"]:
        estimate = Estimate(**row["top1"]) if row["top1"] else None
        n = estimate.n if estimate else 0
        rows.append(
            (
                *setting_cells(row["setting"], study["varying"]),
                row["arm"],
                percent(estimate.mean) if estimate else MISSING,
                spread(estimate.sd, scale=100) if estimate else MISSING,
                percent_interval(estimate) if estimate else MISSING,
                str(n) if n == row["planned"] else f"{n} of {row['planned']}",
                percent(row["balanced_accuracy"]),
                number(row["peak_learning_rate"]),
                span(row["n_train"], count),
                *([span(row["n_relabeled"], count)] if is_relabeled else []),
                span(row["steps"], count),
                span(row["epochs"], number),
            )
        )
    return make_table(
        f"{setting_headers(study['varying'])}; arm; top-1, mean (%); sd (points); {100 * confidence:g} % interval (%); "
        "n (seeds, or replicates of the filter); balanced accuracy (%); peak learning rate; training images; "
        f"{'labels changed; ' if is_relabeled else ''}steps; epochs",
        rows,
        text="model; arm",
    )


def difference_table(study: Mapping[str, Any], confidence: float) -> Table:
    """Build the table of filtered minus each control at each setting, with its tests."""
    rows = [
        (
            f"filtered − {row['control']}",
            *setting_cells(row["setting"], study["varying"]),
            _outcome(row["verdict"]),
            *_difference_cells(row["estimate"]),
            *_p_cells(row["verdict"]),
        )
        for row in study["differences"]
    ]
    return make_table(
        f"difference; {setting_headers(study['varying'])}; verdict; mean (points); sd (points); "
        f"{100 * confidence:g} % interval (points); n (paired seeds, or replicates); p, t test; p, sign flips; "
        f"p, equivalence within ±{margin_text(study['plan']['margin'])}; after Holm: p, difference; "
        "after Holm: p, equivalence",
        rows,
        text="difference; model; verdict",
    )


def critical_batch_table(study: Mapping[str, Any]) -> Table:
    """Build the table of the critical batch size of each arm at each setting that measured it."""
    rows = [
        (
            *setting_cells(row["setting"], study["varying"]),
            row["arm"],
            MISSING if row["median"] is None else count(round(row["median"])),
            image_interval(row["low"], row["high"]),
            str(row["n"]) if row["n"] == row["planned"] else f"{row['n']} of {row['planned']}",
        )
        for row in study["critical_batch"]
    ]
    return make_table(
        f"{setting_headers(study['varying'])}; arm; critical batch size, median (images); "
        "95 % intervals of the runs (images); n (seeds)",
        rows,
        text="model; arm",
    )


def excluded_table(study: Mapping[str, Any]) -> Table:
    """Build the table of skipped and diverged runs."""
    rows = [
        (
            *setting_cells(row["setting"], study["varying"]),
            row["arm"],
            row["status"],
            ", ".join(map(str, row["seeds"])),
            row["reason"],
        )
        for row in study["excluded"]
    ]
    headers = f"{setting_headers(study['varying'])}; arm; status; seeds; reason"
    return make_table(headers, rows, text="model; arm; status; seeds; reason")


def common_settings(study: Mapping[str, Any]) -> str:
    """Return the parts of the setting that all runs share, e.g. `resnet18, learning rate 0.05`."""
    first = study["accuracy"][0]["setting"]
    fixed = [name for name in ("model", "learning_rate", "weight_decay") if name not in study["varying"]]
    named = [first["model"] if name == "model" else f"{name.replace('_', ' ')} {first[name]}" for name in fixed]
    return ", ".join([*named, plural(study["n_cells"], "run")])


def setting_headers(varying: Sequence[str]) -> str:
    """Return the headers of the columns that identify settings: what varies, and the batch size."""
    return "; ".join([*(name.replace("_", " ") for name in varying), "batch size"])


def setting_cells(setting: Mapping[str, Any], varying: Sequence[str]) -> list[str]:
    """Return the cells under `setting_headers`."""
    return [*(str(setting[name]) for name in varying), count(setting["batch_size"])]


def _difference_cells(values: Mapping[str, Any] | None) -> list[str]:
    if values is None:
        return [MISSING, MISSING, MISSING, "0"]
    estimate = Estimate(**values)
    return [points(estimate.mean), spread(estimate.sd), points_interval(estimate), str(estimate.n)]


def _p_cells(verdict: Mapping[str, Any] | None) -> list[str]:
    p = verdict["p"] if verdict else None
    names = ("t", "sign_flip", "equivalence", "adjusted_difference", "adjusted_equivalence")
    return [p_value(p[name] if p else None) for name in names]


def _outcome(verdict: Mapping[str, Any] | None) -> str:
    """Return the outcome; `undecided` gives the reason if no difference could be detected."""
    if verdict is None:
        return MISSING
    outcome: str = verdict["outcome"]
    if verdict["p"] is None:
        return "undecided: no spread"
    if outcome == "undecided" and verdict["too_few_pairs"]:
        return f"undecided: too few {UNIT_NAMES[verdict['limiting_unit']]}s"
    return outcome
