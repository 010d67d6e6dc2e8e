"""Several searches side by side, such as one for each optimizer, each with the same number of trials and epochs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.files import write_bytes, write_json, write_text
from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_csv
from pipeline.commands.tuning.report import page, search_figures
from pipeline.config.params import Params, parse_params
from pipeline.config.tuning import Tuning, apply_values
from pipeline.errors import InputError
from pipeline.figures.rendering import svg, with_note
from pipeline.paths import TUNING_FIGURES, DataPaths
from pipeline.stats import wilson_interval
from pipeline.tuning.results import SearchResult
from viz.yaml_text import with_value

# data/tune/<search>/: tables, figures, and the winner as a parameter file.


def write_outputs(found: SearchResult, params: Params, tuned: str, name: str, data: DataPaths) -> None:
    """Write everything, provenance last.

    Args:
        tuned: from `tuned_text`.
    """
    tuning, n_planted = found.tuning, count_planted(data)
    note = None if n_planted is None else planted_note(n_planted)
    write_csv(data.leaderboard(name), found.leaderboard())
    write_csv(data.tuning_curves(name), found.curves())
    write_json(data.tuning_summary(name), found.summary())
    write_text(data.tuned(name), tuned)
    write_text(data.tuning_page(name), page(found, name, note))
    figures = _write_figures(found, name, data, note)
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


def _write_figures(found: SearchResult, name: str, data: DataPaths, note: str | None) -> list[Path]:
    """Those that there are; of what the search does not have, none of an earlier one stays."""
    drawn = search_figures(found)
    for figure in TUNING_FIGURES:
        if figure in drawn:
            write_bytes(data.tuning_figure(name, figure), svg(with_note(drawn[figure], note)))
        else:
            data.tuning_figure(name, figure).unlink(missing_ok=True)
    return [data.tuning_figure(name, figure) for figure in drawn]


def tuned_text(text: str, tuning: Tuning, values: Mapping[str, Any], *, source: str) -> str:
    """The text of a parameter file with a trial's values in the study, and not a byte changed beside them.

    Args:
        text: of a sound parameter file, which has the study.
        values: of a trial that `trial_run` takes.

    Raises:
        InputError: `source`, whose text it is, has the study's keys in an anchor.
    """
    tree: dict[str, Any] = parse_params(text, source=source)
    study = tree["studies"][tuning.study]
    apply_values(study, values)
    tuned = with_value(text, ["studies", tuning.study], study)
    if parse_params(tuned, source=source) != tree:
        raise InputError(
            f"{source}: studies.{tuning.study} shares keys with others by an anchor; write them out and start "
            "the search again"
        )
    return tuned


def check_values_are_writable(text: str, tuning: Tuning, *, source: str) -> None:
    """Whether a winner's values could be written into the study, before any is trained.

    Raises:
        InputError: as `tuned_text`.
    """
    for end in (0, -1):
        tuned_text(text, tuning, {key: domain.extremes[end] for key, domain in tuning.space.items()}, source=source)


# What may differ: where values are looked for, how many trials are finished afterwards, and where trials run.
_FREE = {"space", "resume_pruned", "scheduler"}
_CONFIDENCE = 0.95
_COLUMNS = pa.schema(
    [
        ("search", pa.string()), ("accuracy", pa.float64()), ("low", pa.float64()), ("high", pa.float64()),
        ("trials", pa.int64()), ("failed", pa.int64()), ("epochs", pa.int64()), ("epochs_allowed", pa.int64()),
        ("values", pa.string()),
    ]
)  # fmt: skip


def check_fair(searches: Mapping[str, Tuning]) -> None:
    """Refuse searches one of which could find more by having more.

    Raises:
        InputError: they differ in a key that decides how much is searched, or how.
    """
    (first, one), *others = searches.items()
    for name, other in others:
        own, theirs = (_effort(search) for search in (one, other))
        for key in own:
            if own[key] != theirs[key]:
                raise InputError(
                    f"tuning.{name}.{key}: {json.dumps(theirs[key])}, and {json.dumps(own[key])} in {first}; make them "
                    "equal, so that none finds more by having more, or run them one by one"
                )


def _effort(search: Tuning) -> dict[str, object]:
    effort = search.model_dump(mode="json", exclude=_FREE)
    return {**effort, "trials": search.n_trials, "sequential": search.scheduler == "sequential"}


def write_comparison(searches: Mapping[str, SearchResult], data: DataPaths) -> Iterator[str]:
    """data/tune/comparison.csv, the best first, and the same in words.

    Winners are compared after the last epoch: one that alone remained has stopped before, and its accuracy there is of
    another length of training, under a schedule that was to go on.

    Args:
        searches: that have ended, and whose winners were trained to the end or failed on the way there.

    Raises:
        InputError: they saw other images.
    """
    rows = []
    if len({found.images for found in searches.values()}) > 1:
        raise InputError(
            f"{data.root}: the images were replaced between {' and '.join(searches)}, which cannot be compared; run "
            "the same command again, which searches on those that are there now"
        )
    n_judged = next(iter(searches.values())).n_judged
    for name, found in searches.items():
        summary = found.summary()
        winner = summary["winner"]
        accuracy, low, high = winner["accuracy_at_end"], None, None
        if accuracy is not None:
            low, high = wilson_interval(round(accuracy * n_judged), n_judged, _CONFIDENCE)
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
    write_csv(data.tuning_comparison, pa.Table.from_pylist(rows, schema=_COLUMNS))
    for row in rows:
        reached = "its winner failed on its way to the last epoch, so that it has no place among the others"
        if row["accuracy"] is not None:
            reached = f"{row['accuracy']:.4f} ({row['low']:.4f} to {row['high']:.4f}) after the last epoch"
        yield (
            f"{row['search']}: {reached}, {row['trials']} trials, {row['epochs']} epochs of {row['epochs_allowed']}, "
            f"{row['values']}"
        )
    yield (
        f"{data.tuning_comparison}: 95 % intervals over the {n_judged} images that judge; the best of many trials is "
        "flattered by being chosen, so compare the winners in a study before you believe it"
    )
