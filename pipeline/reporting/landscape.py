"""Report the loss landscapes that `python -m pipeline landscape` measured: tables, sentences and figure lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.artifacts.tables import read_parquet
from pipeline.figures.curves import LossSlice, slice_figure
from pipeline.figures.rendering import svg
from pipeline.figures.style import LineKey, line_styles
from pipeline.paths import DataPaths
from pipeline.reporting.comparison_tables import ratio_sentence, unadjusted_sentence
from pipeline.reporting.inputs import StudyInputs
from pipeline.stats.formatting import MISSING, number, plural
from pipeline.stats.runs import Setting, describe, varying_fields
from pipeline.stats.study import LossGeometry, landscape
from pipeline.stats.tables import Table, make_table, setting_cells, setting_headers

Landscapes = Mapping[str, Mapping[str, Any]]
"""Study -> its measurements; studies without any are missing."""

_WORDS = {"lower": "smoother", "higher": "less smooth"}
_IMAGES = {"train": "training images", "test": "test images"}
_WHAT = {"eigenvalue": "in the largest eigenvalue of the Hessian", "rise": "in the mean rise of the loss on slices"}
_LACKING = {
    "eigenvalue": "in which a network was not measured, did not converge, or has no positive curvature",
    "rise": "in which a network was not measured, or its loss does not rise",
}


def load_landscapes(studies: Sequence[StudyInputs], paths: DataPaths) -> Landscapes:
    """Return the landscapes of the studies' current runs; measurements of earlier runs are ignored.

    `figure` shows the numbers. `figure_is_written` is whether its file exists, so that a document can show it.

    Raises:
        InputError: a file is damaged.
    """
    landscapes = {}
    for study in studies:
        path = paths.landscape(study.name)
        if not path.exists():
            continue
        runs = read_parquet(paths.runs(study.name), ["fingerprint", "arm", *Setting._fields]).to_pylist()
        fingerprints = [run["fingerprint"] for run in runs]
        rows = read_parquet(path).to_pylist()
        if rows and {row["fingerprint"] for row in rows} <= set(fingerprints):
            measured = {(row["split"], row["fingerprint"]): _loss_geometry(row) for row in rows}
            used = set(study.seeds_used)
            landscapes[study.name] = {
                "splits": {
                    split: landscape(
                        study.runs,
                        [
                            measured.get((split, key)) if run.seed in used else None
                            for run, key in zip(study.runs, fingerprints, strict=True)
                        ],
                        study.plan.alpha,
                    )
                    for split in _IMAGES
                },
                "seeds": sorted({row["seed"] for row in rows}),
                "n_images": rows[0]["n_images"],
                "directions": len(rows[0]["slices"]),
                "n_not_converged": len({row["fingerprint"] for row in rows if not row["converged"]}),
                "figure": svg(slice_figure(slice_panels(rows, runs))),
                "figure_is_written": paths.landscape_figure(study.name).exists(),
            }
    return landscapes


def outdated_landscapes(landscapes: Landscapes, studies: Sequence[StudyInputs], paths: DataPaths) -> list[str]:
    """Return a line for each study whose landscape was measured for earlier runs and is not among `landscapes`."""
    return [
        f"{paths.landscape(study.name)}: is of earlier runs and not shown; run "
        f"`python -m pipeline landscape --study {study.name}`"
        for study in studies
        if study.name not in landscapes and paths.landscape(study.name).exists()
    ]


def landscape_table(study: Mapping[str, Any], measured: Mapping[str, Any]) -> Table:
    """Build the table of each arm at each setting."""
    rows = [
        (
            *setting_cells(row["setting"], study["varying"]),
            row["arm"],
            split,
            MISSING if row["eigenvalue"] is None else number(row["eigenvalue"]),
            number(row["rise"]),
            number(row["loss"]),
            str(row["n"]),
        )
        for split, values in measured["splits"].items()
        for row in values["arms"]
    ]
    headers = (
        f"{setting_headers(study['varying'])}; arm; images; largest eigenvalue of the Hessian; "
        "mean rise of the loss on slices (nats); loss at the weights (nats); n (networks)"
    )
    return make_table(headers, rows, text="model; arm; images")


def landscape_sentences(study: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each measure, split and comparison, and one on all of them."""
    ratios = [
        (ratio, name, split)
        for name in _WHAT
        for split, values in measured["splits"].items()
        for ratio in values["ratios"][name]
    ]
    sentences = [_sentence(ratio, study["plan"]["alpha"], name, split) for ratio, name, split in ratios]
    return [sentence for sentence in (*sentences, unadjusted_sentence(ratio for ratio, *_ in ratios)) if sentence]


def _sentence(ratio: Mapping[str, Any], alpha: float, name: str, split: str) -> str:
    return ratio_sentence(
        ratio,
        alpha,
        what=f"{_WHAT[name]}, {_IMAGES[split]}",
        unit="times as large",
        words=_WORDS,
        left_out=f"{plural(ratio['left_out'], 'setting')} left out, {_LACKING[name]}",
    )


def slice_panels(rows: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> dict[str, list[LossSlice]]:
    """Return panel title -> mean slices over networks and directions, one panel for each split and batch size.

    Args:
        rows: rows of data/landscape/<study>.parquet.
        runs: all rows of data/train/<study>.parquet, which determine the color and style of each line.
    """
    varying = varying_fields(map(_setting, runs))
    styles = line_styles([_line_key(run, varying) for run in sorted(runs, key=_setting)])
    groups: dict[str, dict[LineKey, list[Any]]] = {}
    for row in rows:
        title = f"batch size {row['batch_size']:,}, {_IMAGES[row['split']]}"
        line_slices = groups.setdefault(title, {key: [] for key in styles})[_line_key(row, varying)]
        line_slices.append(np.mean(row["slices"], axis=0))
    return {
        title: [
            LossSlice(key=key, style=styles[key], distances=rows[0]["distances"], loss=np.mean(slices, axis=0).tolist())
            for key, slices in lines.items()
            if slices
        ]
        for title, lines in groups.items()
    }


def _setting(row: Mapping[str, Any]) -> Setting:
    return Setting(*(row[name] for name in Setting._fields))


def _line_key(row: Mapping[str, Any], varying: Sequence[str]) -> LineKey:
    return LineKey(row["arm"], describe(_setting(row), varying))


def _loss_geometry(row: Mapping[str, Any]) -> LossGeometry:
    return LossGeometry(loss=row["loss"], eigenvalue=row["top_eigenvalue"], rise=row["rise"])
