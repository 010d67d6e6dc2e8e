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
_IMAGES = {"train": "training images", "test": "test images"}
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
        rows = read_parquet(path).to_pylist()
        if rows and {row["fingerprint"] for row in rows} <= set(fingerprints):
            measured = {(row["split"], row["fingerprint"]): _surroundings(row) for row in rows}
            found[study.name] = {
                "splits": {
                    split: landscape(study.runs, [measured.get((split, key)) for key in fingerprints], study.plan.alpha)
                    for split in _IMAGES
                },
                "seeds": sorted({row["seed"] for row in rows}),
                "n_images": rows[0]["n_images"],
                "directions": len(rows[0]["slices"]),
                "n_not_converged": sum(not row["converged"] for row in rows),
                "figure": paths.landscape_figure(study.name).read_bytes(),
            }
    return found


def landscape_table(study: Mapping[str, Any], found: Mapping[str, Any]) -> Table:
    """Each arm at each setting."""
    rows = [
        (
            *setting_cells(row["setting"], study["varying"]),
            row["arm"],
            split,
            NOTHING if row["eigenvalue"] is None else number(row["eigenvalue"]),
            number(row["rise"]),
            number(row["loss"]),
            str(row["n"]),
        )
        for split, of_split in found["splits"].items()
        for row in of_split["arms"]
    ]
    heads = (
        f"{setting_heads(study['varying'])}; arm; images; largest eigenvalue of the Hessian; "
        "mean rise of the loss on slices (nats); loss at the weights (nats); n (networks)"
    )
    return table_of(heads, rows, text="model; arm; images")


def landscape_sentences(study: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """A sentence for each measure, split and comparison."""
    return [
        _sentence(ratio, study["plan"]["alpha"], name, split)
        for name in _WHAT
        for split, of_split in found["splits"].items()
        for ratio in of_split["ratios"][name]
    ]


def _sentence(ratio: Mapping[str, Any], alpha: float, name: str, split: str) -> str:
    what, unit = _WHAT[name]
    return ratio_sentence(
        ratio,
        alpha,
        what=f"{what}, {_IMAGES[split]}",
        unit=unit,
        words=_WORDS,
        left_out=f"{plural(ratio['left_out'], 'setting')} left out, where a network was not measured or not convex",
    )


def slice_panels(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[LossSlice]]:
    """Panel title -> mean slices over networks and directions, one panel for each split and batch size.

    Args:
        rows: of data/landscape/<study>.parquet.
    """
    settings = [Setting(*(row[name] for name in Setting._fields)) for row in rows]
    varying = varying_fields(settings)
    groups: dict[tuple[str, LineKey], list[Any]] = {}
    for row, setting in zip(rows, settings, strict=True):
        key = LineKey(row["arm"], describe(setting, varying))
        title = f"batch size {setting.batch_size:,}, {_IMAGES[row['split']]}"
        groups.setdefault((title, key), []).append(np.mean(row["slices"], axis=0))
    panels: dict[str, list[LossSlice]] = {}
    for (title, key), slices in groups.items():
        mean = np.mean(slices, axis=0).tolist()
        curve = LossSlice(key=key, distances=rows[0]["distances"], loss=mean)
        panels.setdefault(title, []).append(curve)
    return panels


def _surroundings(row: Mapping[str, Any]) -> Surroundings:
    return Surroundings(loss=row["loss"], eigenvalue=row["top_eigenvalue"], rise=row["rise"])
