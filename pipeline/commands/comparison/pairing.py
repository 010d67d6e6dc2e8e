"""Pair the runs of two experiments that have the same setting, filter draw and seed."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.commands.comparison.experiments import Row
from pipeline.config.extractors import base_architecture
from pipeline.errors import InputError


class PairSetting(NamedTuple):
    """The settings that both runs of a pair share, in addition to the seed and the draw of the filter.

    `filter_network` has no replicate number, and is empty for the arm `full`, which uses no filter.
    """

    model: str
    arm: str
    filter_network: str
    batch_size: int
    simulated_workers: int
    learning_rate: float
    weight_decay: float


class PairKey(NamedTuple):
    """Key of a run within its study. `draw` is the filter's network, empty for the arm `full`."""

    setting: PairSetting
    draw: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A run of each experiment with the same key, both finished."""

    key: PairKey
    a: Row
    b: Row

    @property
    def is_same_run(self) -> bool:
        """Whether both are the same run, trained once, so their equality is no evidence."""
        return bool(self.a["fingerprint"] == self.b["fingerprint"])

    @property
    def difference(self) -> float:
        """B - A in top-1, -1 to 1."""
        return float(self.b["top1"] - self.a["top1"])


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """Paired runs of one study.

    Attributes:
        pairs: of runs that finished in both experiments.
        unfinished: number of pairs in which a run was skipped or diverged.
        unpaired: number of runs whose setting both have, without a run of their seed and draw in the other.
        only_a, only_b: settings of only one experiment.
    """

    pairs: list[Pair]
    unfinished: int
    unpaired: int
    only_a: list[PairSetting]
    only_b: list[PairSetting]


@dataclass(frozen=True, kw_only=True)
class ColumnDifference:
    """A column, or a key of `settings`, that differs within pairs and is not a result.

    Attributes:
        column: its name.
        pairs: number of pairs that differ.
        a, b: the values, if all pairs that differ have the same ones; else None.
    """

    column: str
    pairs: int
    a: Any
    b: Any


# Columns of results, and columns that identify the run.
_RESULTS = frozenset(
    {"study", "fingerprint", "status", "reason", "top1", "balanced_accuracy", "loss", "skipped_steps"}
    | {"critical_batch", "critical_batch_low", "critical_batch_high", "chain_end", "settings"}
)


def pair_runs(a: Sequence[Row], b: Sequence[Row]) -> Pairing:
    """Match the runs of a study in experiment A with those in B.

    Raises:
        InputError: a study has two runs with the same key.
    """
    runs_a, runs_b = _by_key(a), _by_key(b)
    both = [key for key in runs_a if key in runs_b]
    pairs = [Pair(key=key, a=runs_a[key], b=runs_b[key]) for key in both]
    finished = [pair for pair in pairs if pair.a["status"] == pair.b["status"] == "finished"]
    settings_a, settings_b = ({key.setting for key in rows} for rows in (runs_a, runs_b))
    common = settings_a & settings_b
    return Pairing(
        pairs=sorted(finished, key=lambda pair: pair.key),
        unfinished=len(pairs) - len(finished),
        unpaired=sum(key.setting in common for key in runs_a.keys() ^ runs_b.keys()),
        only_a=sorted(settings_a - common),
        only_b=sorted(settings_b - common),
    )


def differing_columns(pairs: Iterable[Pair]) -> list[ColumnDifference]:
    """Return the columns and settings that differ within pairs, such as recipe, images or machine."""
    differences: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for pair in pairs:
        a, b = _compared(pair.a), _compared(pair.b)
        for column in dict.fromkeys((*a, *b)):
            if a.get(column) != b.get(column):
                differences[column].append((a.get(column), b.get(column)))
    return [
        ColumnDifference(column=column, pairs=len(values), a=values[0][0], b=values[0][1])
        if all(value == values[0] for value in values)
        else ColumnDifference(column=column, pairs=len(values), a=None, b=None)
        for column, values in differences.items()
    ]


def _compared(row: Row) -> Mapping[str, Any]:
    """Return the columns other than results, and the keys of `settings` without a column."""
    columns = {name: value for name, value in row.items() if name not in _RESULTS}
    # `learning_rate` of `settings` is the scaled one, which is the column peak_learning_rate.
    return {**columns, **{name: value for name, value in json.loads(row["settings"]).items() if name not in columns}}


def _by_key(rows: Iterable[Row]) -> dict[PairKey, Row]:
    runs: dict[PairKey, Row] = {}
    for row in rows:
        key = _key(row)
        if key in runs:
            names = ", ".join(f"{name} {row[name]}" for name in (*PairSetting._fields, "seed"))
            raise InputError(f"a study has two runs with {names}; run `dvc repro --force`")
        runs[key] = row
    return runs


def _key(row: Row) -> PairKey:
    values = {name: row[name] for name in PairSetting._fields}
    filtered = row["arm"] != "full"
    values["filter_network"] = base_architecture(row["filter_network"]) if filtered else ""
    return PairKey(setting=PairSetting(**values), draw=row["filter_network"] if filtered else "", seed=row["seed"])
