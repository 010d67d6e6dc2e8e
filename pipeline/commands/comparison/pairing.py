"""The runs of two experiments that differ in nothing but the experiment."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.commands.comparison.experiments import Row
from pipeline.config.extractors import base_architecture
from pipeline.errors import InputError


class PairSetting(NamedTuple):
    """What the two runs of a pair share beside the seed and the draw of the filter.

    `filter_network` is without the number of its replicate, and empty for arm `full`, which no filter touches.
    """

    model: str
    arm: str
    filter_network: str
    batch_size: int
    simulated_workers: int
    learning_rate: float
    weight_decay: float


class PairKey(NamedTuple):
    """What tells a run from the others of its study. `draw` is the filter's network, empty for arm `full`."""

    setting: PairSetting
    draw: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One run of each experiment, both finished."""

    key: PairKey
    a: Row
    b: Row

    @property
    def is_one_run(self) -> bool:
        """Whether both are the same cell, trained once: their equality tells nothing."""
        return bool(self.a["fingerprint"] == self.b["fingerprint"])

    @property
    def difference(self) -> float:
        """B - A in top-1, -1 to 1."""
        return float(self.b["top1"] - self.a["top1"])


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """One study of both experiments.

    Attributes:
        pairs: of runs that finished in both.
        unfinished: pairs of which a run was skipped or diverged.
        unpaired: runs whose setting both have, without a run of their seed and draw in the other.
        only_a, only_b: settings that only one of them has.
    """

    pairs: list[Pair]
    unfinished: int
    unpaired: int
    only_a: list[PairSetting]
    only_b: list[PairSetting]


@dataclass(frozen=True, kw_only=True)
class ColumnDifference:
    """A column, or a key of `settings`, that differs within pairs although it is no result.

    Attributes:
        pairs: how many differ.
        a, b: the values, where all pairs that differ have the same ones; None elsewhere.
    """

    column: str
    pairs: int
    a: Any
    b: Any


# What a run measured, and what says which cell it is.
_RESULTS = frozenset(
    {"study", "fingerprint", "status", "reason", "top1", "balanced_accuracy", "loss", "skipped_steps"}
    | {"critical_batch", "critical_batch_low", "critical_batch_high", "chain_end", "settings"}
)


def pair_runs(a: Sequence[Row], b: Sequence[Row]) -> Pairing:
    """Match the cells of a study in experiment A with those in B.

    Raises:
        InputError: a study has two runs that nothing but their results tells apart.
    """
    ours, theirs = _by_key(a), _by_key(b)
    both = [key for key in ours if key in theirs]
    pairs = [Pair(key=key, a=ours[key], b=theirs[key]) for key in both]
    finished = [pair for pair in pairs if pair.a["status"] == pair.b["status"] == "finished"]
    settings_a, settings_b = ({key.setting for key in rows} for rows in (ours, theirs))
    common = settings_a & settings_b
    return Pairing(
        pairs=sorted(finished, key=lambda pair: pair.key),
        unfinished=len(pairs) - len(finished),
        unpaired=sum(key.setting in common for key in ours.keys() ^ theirs.keys()),
        only_a=sorted(settings_a - common),
        only_b=sorted(settings_b - common),
    )


def differing_columns(pairs: Iterable[Pair]) -> list[ColumnDifference]:
    """What else differs between the two runs of a pair: the recipe, the images, the machine."""
    found: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for pair in pairs:
        a, b = _compared(pair.a), _compared(pair.b)
        for column in dict.fromkeys((*a, *b)):
            if a.get(column) != b.get(column):
                found[column].append((a.get(column), b.get(column)))
    return [
        ColumnDifference(column=column, pairs=len(values), a=values[0][0], b=values[0][1])
        if all(value == values[0] for value in values)
        else ColumnDifference(column=column, pairs=len(values), a=None, b=None)
        for column, values in found.items()
    ]


def _compared(row: Row) -> Mapping[str, Any]:
    """The columns that are no results, then the keys of `settings` that have no column of their own."""
    columns = {name: value for name, value in row.items() if name not in _RESULTS}
    # There `learning_rate` is the one after scaling, the column peak_learning_rate.
    return {**columns, **{name: value for name, value in json.loads(row["settings"]).items() if name not in columns}}


def _by_key(rows: Iterable[Row]) -> dict[PairKey, Row]:
    found: dict[PairKey, Row] = {}
    for row in rows:
        key = _key(row)
        if key in found:
            names = ", ".join(f"{name} {row[name]}" for name in (*PairSetting._fields, "seed"))
            raise InputError(f"a study has two runs with {names}; run `dvc repro --force`")
        found[key] = row
    return found


def _key(row: Row) -> PairKey:
    values = {name: row[name] for name in PairSetting._fields}
    filtered = row["arm"] != "full"
    values["filter_network"] = base_architecture(row["filter_network"]) if filtered else ""
    return PairKey(setting=PairSetting(**values), draw=row["filter_network"] if filtered else "", seed=row["seed"])
