"""A study's comparisons as tables of text: over all settings, by class, and with what is published."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.stats.estimates import Estimate
from pipeline.stats.pairs import TREATED
from pipeline.stats.study_tables import Table, table_of
from pipeline.stats.wording import NOTHING, count, percent, percent_interval, points, points_interval, spread

FEW = 2
"""Up to so many studies each has its sentence on top of the report; more have a line of a table each."""


def verdict_table(studies: Sequence[Mapping[str, Any]], confidence: float) -> Table:
    """A line for every pooled comparison of all studies, their primary ones first; none for FEW studies or fewer."""
    compared = [(study, row) for study in studies for row in study["pooled"] if row["verdict"]]
    rows = [
        (
            study["name"],
            f"{TREATED} − {row['control']}{', primary' if row['primary'] else ''}",
            study["plan"]["matched"],
            row["verdict"]["outcome"],
            points(row["estimate"]["mean"]),
            points_interval(Estimate(**row["estimate"])),
            count(row["estimate"]["n"]),
            count(row["needed"]["n"]) if row["needed"] else NOTHING,
        )
        for study, row in sorted(compared, key=lambda pair: not pair[1]["primary"])
    ]
    return table_of(
        f"study; difference; equal; verdict; mean (points); {100 * confidence:g} % interval (points); "
        "seeds, or draws; needed for the margin",
        rows if len(_with_primary(studies)) > FEW else [],
        text="study; difference; equal; verdict",
    )


def verdict_counts(studies: Sequence[Mapping[str, Any]]) -> str:
    """How many studies' primary comparisons came out how; empty for FEW studies or fewer."""
    found = Counter(row["verdict"]["outcome"] for row in _with_primary(studies))
    if found.total() <= FEW:
        return ""
    said = [f"{number} {outcome}" for outcome, number in found.most_common()]
    return f"Of the primary comparisons of {found.total()} studies: {', '.join(said)}."


def _with_primary(studies: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for study in studies for row in study["pooled"] if row["primary"] and row["verdict"]]


def pooled_table(study: Mapping[str, Any]) -> Table:
    """The pooled comparisons with each of their intervals, the primary one first."""
    confidence = 1 - study["plan"]["alpha"]
    rows = [
        (
            f"{TREATED} − {row['control']}{', primary' if row['primary'] else ''}",
            *_pooled_cells(row),
            row["verdict"]["outcome"],
        )
        for row in study["pooled"]
        if row["verdict"]
    ]
    return table_of(
        f"difference; mean (points); sd (points); {100 * confidence:g} % t interval (points); "
        f"{100 * confidence:g} % bootstrap interval, test images too (points); "
        f"{100 * (2 * confidence - 1):g} % interval of the equivalence test (points); draws; seeds; settings; "
        "needed for the margin (seeds, or draws); verdict",
        rows,
        text="difference; verdict",
    )


def class_difference_table(comparison: Mapping[str, Any], confidence: float) -> Table:
    """Accuracy of each class, and of the worst class of each run, in both arms of one comparison."""
    images = comparison["images"]
    rows = [(row["class"], *_class_cells(row)) for row in images["classes"]]
    rows.append(("worst class of each run", *_class_cells(images["worst"])))
    return table_of(
        f"class; {TREATED} (%); {comparison['control']} (%); difference (points); sd (points); "
        f"{100 * confidence:g} % interval (points)",
        rows,
        text="class",
    )


def published_table(published: Mapping[str, Any], confidence: float) -> Table:
    """Each published accuracy beside those measured at its setting; where there is none, what the study lacks.

    Args:
        published: what `held_beside` says.
    """
    rows = [
        (
            point["arm"],
            count(point["batch_size"]),
            " or ".join(map(str, point["weight_decays"])),
            percent(point["top1"]),
            point["place"],
            *cells,
        )
        for point in published["points"]
        for cells in _measured_cells(point)
    ]
    return table_of(
        "arm; batch size; weight decay; published (%); place; "
        f"measured, mean (%); {100 * confidence:g} % interval (%); n (seeds, or draws of the filter); "
        "measured − published (points); measured as",
        rows,
        text="arm; place; measured as",
    )


def _measured_cells(point: Mapping[str, Any]) -> list[tuple[str, ...]]:
    if point["missing"]:
        return [(*[NOTHING] * 4, point["missing"])]
    cells: list[tuple[str, ...]] = []
    for row in point["measured"]:
        estimate = Estimate(**row["top1"])
        cells.append(
            (
                percent(estimate.mean),
                percent_interval(estimate),
                count(estimate.n),
                points(row["difference"]),
                f"{row['label']}, weight decay {row['weight_decay']}" if not row["variant"] else row["label"],
            )
        )
    return cells


def _pooled_cells(row: Mapping[str, Any]) -> list[str]:
    estimate, verdict, images = Estimate(**row["estimate"]), row["verdict"], row["images"]
    return [
        points(estimate.mean),
        spread(estimate.sd),
        points_interval(estimate),
        _ends(images["bootstrap"]["low"], images["bootstrap"]["high"]),
        _ends(verdict["equivalence_low"], verdict["equivalence_high"]),
        count(verdict["draws"]),
        count(verdict["seeds"]),
        count(row["settings"]),
        count(row["needed"]["n"]) if row["needed"] else NOTHING,
    ]


def _class_cells(row: Mapping[str, Any]) -> list[str]:
    estimate = Estimate(**row["estimate"])
    arms = [percent(row["treated"]), percent(row["control"])]
    return [*arms, points(estimate.mean), spread(estimate.sd), points_interval(estimate)]


def _ends(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{points(low)} to {points(high)}"
