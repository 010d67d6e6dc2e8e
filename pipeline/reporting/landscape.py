"""What `python -m pipeline landscape` measured of a study, as tables, sentences and lines of a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import StudyInputs
from pipeline.reporting.ratio_wording import ratio_sentence
from pipeline.stats.landscape import Surroundings, landscape
from pipeline.stats.runs import Setting, describe, varying_fields
from pipeline.stats.study_tables import Table, setting_cells, setting_heads, table_of
from pipeline.stats.wording import NOTHING, number, plural
from viz.figures.palette import LineKey
from viz.figures.slices import LossSlice

Landscapes = Mapping[str, Mapping[str, Any]]
"""Study -> what was measured of it; studies of which nothing was are missing."""

_WORDS = {"lower": "smoother", "higher": "less smooth"}
_WHAT = {
    "eigenvalue": ("in the largest eigenvalue of the Hessian", "times as large"),
    "rise": ("in the mean rise of the loss on slices", "times as large"),
}


def load_landscapes(studies: Sequence[StudyInputs], paths: DataPaths) -> Landscapes:
    """Of the studies' runs as they are now; what was measured of earlier ones is not looked at.

    Raises:
        InputError: a file is damaged.
    """
    found = {}
    for study in studies:
        path = paths.landscape(study.name)
        if not path.exists():
            continue
        fingerprints = read_parquet(paths.runs(study.name), ["fingerprint"])["fingerprint"].to_pylist()
        rows = {row["fingerprint"]: row for row in read_parquet(path).to_pylist()}
        if rows and rows.keys() <= set(fingerprints):
            first = next(iter(rows.values()))
            measured = [_surroundings(rows.get(key)) for key in fingerprints]
            found[study.name] = {
                **landscape(study.runs, measured, study.plan.alpha),
                "n_images": first["n_images"],
                "directions": len(first["slices"]),
                "n_not_converged": sum(not row["converged"] for row in rows.values()),
                "figure": paths.landscape_figure(study.name).read_bytes(),
            }
    return found


def landscape_table(study: Mapping[str, Any], found: Mapping[str, Any]) -> Table:
    """Each arm at each setting."""
    rows = [
        (
            *setting_cells(row["setting"], study["varying"]),
            row["arm"],
            NOTHING if row["eigenvalue"] is None else number(row["eigenvalue"]),
            number(row["rise"]),
            number(row["loss"]),
            str(row["n"]),
        )
        for row in found["arms"]
    ]
    heads = (
        f"{setting_heads(study['varying'])}; arm; largest eigenvalue of the Hessian; "
        "mean rise of the loss on slices (nats); loss at the weights (nats); n (networks)"
    )
    return table_of(heads, rows, text="model; arm")


def landscape_sentences(study: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """A sentence for each measure and comparison."""
    return [
        ratio_sentence(
            ratio,
            study["plan"]["alpha"],
            what=what,
            unit=unit,
            words=_WORDS,
            left_out=f"{plural(ratio['left_out'], 'setting')} left out, where a network was not measured or not convex",
        )
        for name, (what, unit) in _WHAT.items()
        for ratio in found["ratios"][name]
    ]


def slice_panels(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[LossSlice]]:
    """Panel title -> mean slices over networks and directions, one panel for each batch size, one line for each arm.

    Args:
        rows: of data/landscape/<study>.parquet.
    """
    settings = [Setting(*(row[name] for name in Setting._fields)) for row in rows]
    varying = varying_fields(settings)
    groups: dict[tuple[int, LineKey], list[Any]] = {}
    for row, setting in zip(rows, settings, strict=True):
        key = LineKey(row["arm"], describe(setting, varying))
        groups.setdefault((setting.batch_size, key), []).append(np.mean(row["slices"], axis=0))
    panels: dict[str, list[LossSlice]] = {}
    for (batch_size, key), slices in sorted(groups.items()):
        mean = np.mean(slices, axis=0).tolist()
        curve = LossSlice(key=key, distances=rows[0]["distances"], loss=mean)
        panels.setdefault(f"batch size {batch_size:,}", []).append(curve)
    return panels


def _surroundings(row: Mapping[str, Any] | None) -> Surroundings | None:
    if row is None:
        return None
    return Surroundings(loss=row["loss"], eigenvalue=row["top_eigenvalue"], rise=row["rise"])
