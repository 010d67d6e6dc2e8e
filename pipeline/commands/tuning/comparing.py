"""Several searches side by side, such as one for each optimizer, each with the same number of trials and epochs."""

import json
from collections.abc import Iterator, Mapping

import pyarrow as pa

from pipeline.artifacts.tables import write_csv
from pipeline.config.tuning import Tuning
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.stats import wilson_interval
from pipeline.tuning.results import Found

# What may differ: where values are looked for, how many trials are finished afterwards, and where trials run.
_FREE = {"space", "finish", "way"}
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
    return {**effort, "trials": search.n_trials, "sequential": search.way == "sequential"}


def write_comparison(searches: Mapping[str, Found], data: DataPaths) -> Iterator[str]:
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
