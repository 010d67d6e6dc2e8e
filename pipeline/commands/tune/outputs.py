"""Write the outputs of a search to data/tune/<search>/, and compare several searches, such as one per optimizer."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.files import write_bytes, write_json, write_text
from pipeline.artifacts.prepared import count_planted, planted_note, with_planted_column
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_csv
from pipeline.commands.tune.report import page, search_figures
from pipeline.config.params import Params
from pipeline.config.tuning import Tuning, apply_values
from pipeline.config.yaml_reading import parse_yaml
from pipeline.errors import InputError
from pipeline.figures.rendering import svg, with_note
from pipeline.paths import TUNING_FIGURES, DataPaths
from pipeline.stats import wilson_interval
from pipeline.tuning.results import SearchResult
from viz.yaml_text import with_value

# Keys that may differ: the space of values, how many trials are resumed afterwards, and where trials run.
_FREE = {"space", "resume_pruned", "scheduler"}
_CONFIDENCE = 0.95

_COLUMNS = pa.schema(
    [
        ("search", pa.string()), ("accuracy", pa.float64()), ("low", pa.float64()), ("high", pa.float64()),
        ("trials", pa.int64()), ("failed", pa.int64()), ("epochs", pa.int64()), ("epochs_allowed", pa.int64()),
        ("values", pa.string()),
    ]
)  # fmt: skip


def write_outputs(result: SearchResult, params: Params, tuned: str, name: str, data: DataPaths) -> None:
    """Write tables, figures, page and the winner as a parameter file; provenance comes last.

    Args:
        result: of the search.
        params: with the search.
        tuned: from `tuned_text`.
        name: of the search.
        data: folder of the stages' outputs.
    """
    tuning, n_planted = result.tuning, count_planted(data)
    note = None if n_planted is None else planted_note(n_planted)
    write_csv(data.leaderboard(name), with_planted_column(result.leaderboard(), n_planted))
    write_csv(data.tuning_curves(name), with_planted_column(result.curves(), n_planted))
    write_json(data.tuning_summary(name), result.summary())
    write_text(data.tuned(name), tuned)
    write_text(data.tuning_page(name), page(result, name, note))
    figures = _write_figures(result, name, data, note)
    study = params.studies[tuning.study]
    arms = [] if study.arms[0] == "full" else [data.kept(study.filter_network)]
    write_provenance(
        data.tuning_provenance(name),
        stage=f"tune@{name}",
        parameters={
            "tuning": tuning.model_dump(mode="json", exclude={"scheduler"}),
            "study": study.model_dump(mode="json"),
            "train": params.train.model_dump(mode="json"),
        },
        inputs=[data.images("train"), data.manifest("train"), *arms],
        outputs=[
            data.leaderboard(name),
            data.tuning_curves(name),
            data.tuning_summary(name),
            data.tuning_page(name),
            *figures,
            data.tuned(name),
        ],
    )


def _write_figures(result: SearchResult, name: str, data: DataPaths, note: str | None) -> list[Path]:
    """Write the figures of the search, and remove figures of an earlier search that this one lacks."""
    figures = search_figures(result)
    for figure in TUNING_FIGURES:
        if figure in figures:
            write_bytes(data.tuning_figure(name, figure), svg(with_note(figures[figure], note)))
        else:
            data.tuning_figure(name, figure).unlink(missing_ok=True)
    return [data.tuning_figure(name, figure) for figure in figures]


def tuned_text(text: str, tuning: Tuning, values: Mapping[str, Any], *, source: str) -> str:
    """Return the text of a parameter file with a trial's values in the study and all other bytes unchanged.

    Args:
        text: of a valid parameter file with the study.
        tuning: names the study.
        values: of a trial, valid for `trial_run`.
        source: the parameter file.

    Raises:
        InputError: `source` has the study's keys in an anchor.
    """
    tree: dict[str, Any] = parse_yaml(text, source=source)
    study = tree["studies"][tuning.study]
    apply_values(study, values)
    tuned = with_value(text, ["studies", tuning.study], study)
    if parse_yaml(tuned, source=source) != tree:
        raise InputError(
            f"{source}: studies.{tuning.study} shares keys with others by an anchor; write them out and start "
            "the search again"
        )
    return tuned


def check_values_are_writable(text: str, tuning: Tuning, *, source: str) -> None:
    """Check before any training that a winner's values can be written into the study.

    Raises:
        InputError: as `tuned_text`.
    """
    for end in (0, -1):
        tuned_text(text, tuning, {key: domain.extremes[end] for key, domain in tuning.space.items()}, source=source)


def check_fair(searches: Mapping[str, Tuning]) -> None:
    """Reject searches of unequal effort.

    Raises:
        InputError: they differ in a key that decides the effort or the method of the search.
    """
    (first_name, first), *others = searches.items()
    reference = _effort(first)
    for name, other in others:
        effort = _effort(other)
        for key in reference:
            if reference[key] != effort[key]:
                raise InputError(
                    f"tuning.{name}.{key}: {json.dumps(effort[key])}, but {json.dumps(reference[key])} in "
                    f"{first_name}; make them equal, so that the comparison is fair, or run them one by one"
                )


def _effort(search: Tuning) -> dict[str, object]:
    effort = search.model_dump(mode="json", exclude=_FREE)
    return {**effort, "trials": search.n_trials, "sequential": search.scheduler == "sequential"}


def write_comparison(searches: Mapping[str, SearchResult], data: DataPaths) -> Iterator[str]:
    """Write data/tune/comparison.csv, the best first, and yield it as lines of text.

    Winners are compared after the last epoch. A search may stop earlier, when only the winner remains; the accuracy at
    that point is of a shorter training with an unfinished schedule.

    Args:
        searches: finished searches, each with its winner trained to the last epoch or failed before it.
        data: folder of the stages' outputs.

    Raises:
        InputError: the searches used different images.
    """
    rows = []
    if len({result.images for result in searches.values()}) > 1:
        raise InputError(
            f"{data.root}: the images were replaced between {' and '.join(searches)}, which cannot be compared; run "
            "the same command again to search on the current images"
        )
    n_val = next(iter(searches.values())).n_val
    for name, result in searches.items():
        summary = result.summary()
        winner = summary["winner"]
        accuracy, low, high = winner["accuracy_at_end"], None, None
        if accuracy is not None:
            low, high = wilson_interval(round(accuracy * n_val), n_val, _CONFIDENCE)
        rows.append(
            {
                "search": name,
                "accuracy": accuracy,
                "low": low,
                "high": high,
                "trials": summary["trials"],
                "failed": summary["failed"],
                "epochs": summary["epochs"],
                "epochs_allowed": summary["epochs_allowed"],
                "values": json.dumps(winner["values"]),
            }
        )
    rows.sort(key=lambda row: -1.0 if row["accuracy"] is None else row["accuracy"], reverse=True)
    table = pa.Table.from_pylist(rows, schema=_COLUMNS)
    n_planted = count_planted(data) if data.prepare_metrics.exists() else None
    write_csv(data.tuning_comparison, with_planted_column(table, n_planted))
    for row in rows:
        accuracy_text = "its winner failed before the last epoch, so it is not compared"
        if row["accuracy"] is not None:
            accuracy_text = f"{row['accuracy']:.4f} ({row['low']:.4f} to {row['high']:.4f}) after the last epoch"
        yield (
            f"{row['search']}: {accuracy_text}, {row['trials']} trials, {row['epochs']} epochs of "
            f"{row['epochs_allowed']}, {row['values']}"
        )
    yield (
        f"{data.tuning_comparison}: 95 % intervals over the {n_val} validation images; selection makes the best of "
        "many trials look too good, so compare the winners in a study before you rely on it"
    )
