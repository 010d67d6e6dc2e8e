"""Pair the runs of two experiments, and give verdicts per arm and per setting; compare their filters.

A pair has the same setting, filter draw and seed.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.runs import Row
from pipeline.commands.compare.experiments import Experiment, KeptImages
from pipeline.config.extractors import base_architecture
from pipeline.errors import InputError
from pipeline.stats.replicates import complete_seeds
from pipeline.stats.verdict import DecisionRule, Verdict, pooled_verdicts, verdicts_by_setting

# Columns of results, and columns that identify the run.
_RESULTS = frozenset(
    {"study", "fingerprint", "status", "reason", "top1", "balanced_accuracy", "loss", "skipped_steps"}
    | {"critical_batch", "critical_batch_low", "critical_batch_high", "chain_end", "settings"}
)

Differences = Mapping[tuple[str, int], float]
"""Differences of one setting: (replicate of the filter, seed) -> B - A in top-1, -1 to 1."""


class PairSetting(NamedTuple):
    """The settings that both runs of a pair share, in addition to the seed and the replicate of the filter.

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


@dataclass(frozen=True, kw_only=True)
class SettingVerdict:
    """Verdict on B against A at one setting; Holm's adjustment covers all settings of the study."""

    setting: PairSetting
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class ArmVerdict:
    """Verdict on B against A in one arm; Holm's adjustment covers the arms.

    A change can have different effects in different arms.

    Attributes:
        arm: of the study.
        verdict: over all complete settings; None without any.
        left_out: number of settings that lack a seed or draw which others of the arm have.
    """

    arm: str
    verdict: Verdict | None
    left_out: int


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """Comparison of one study of both experiments.

    Attributes:
        study: its name.
        runs_a, runs_b: number of runs, finished or not.
        pairs: number of pairs of different runs that finished in both.
        same_runs: number of pairs of one run (one fingerprint), which no test uses.
        unfinished, unpaired: as in `Pairing`.
        differing: columns and settings that differ within pairs, other than results.
        no_verdict: why accuracies of A and B cannot be compared, as the end of a sentence; then there are no verdicts.
        pooled: verdict of each arm with pairs, `filtered` first.
        settings: verdicts of the settings with a seed that all replicates of the filter have.
        only_a, only_b: settings of only one experiment.
    """

    study: str
    runs_a: int
    runs_b: int
    pairs: int
    same_runs: int
    unfinished: int
    unpaired: int
    differing: list[ColumnDifference]
    no_verdict: str | None
    pooled: list[ArmVerdict]
    settings: list[SettingVerdict]
    only_a: list[PairSetting]
    only_b: list[PairSetting]


@dataclass(frozen=True, kw_only=True)
class FilterComparison:
    """The images that one network's filter kept in both experiments, identified by path.

    Attributes:
        network: of the filter.
        share_a, share_b: fraction of images kept, 0 to 1.
        jaccard: images kept in both over images kept in either, 0 to 1.
        only_a, only_b: number of images kept in only one experiment.
    """

    network: str
    share_a: float
    share_b: float
    jaccard: float
    only_a: int
    only_b: int


def compare_study_runs(
    study: str, a: Sequence[Row], b: Sequence[Row], rule: DecisionRule, *, step: float, no_verdict: str | None = None
) -> StudyComparison:
    """Pair the runs of a study and test B against A.

    Args:
        study: its name.
        a, b: runs of the study.
        rule: margin and level of the tests.
        step: resolution of the accuracies, 1 / test images.
        no_verdict: why accuracies of A and B cannot be compared; None if they can.

    Raises:
        InputError: as `pair_runs`.
    """
    pairing = pair_runs(a, b)
    pairs = [pair for pair in pairing.pairs if not pair.is_same_run]
    tables = {} if no_verdict else _by_setting(pairs)
    draws = sorted({draw for table in tables.values() for draw, _ in table if draw})
    by_setting = {setting: _table(table, _setting_draws(setting, draws)) for setting, table in tables.items()}
    by_setting = {setting: table for setting, table in by_setting.items() if table.size}
    verdicts = verdicts_by_setting(list(by_setting.values()), rule, step=step)
    return StudyComparison(
        study=study,
        runs_a=len(a),
        runs_b=len(b),
        pairs=len(pairs),
        same_runs=len(pairing.pairs) - len(pairs),
        unfinished=pairing.unfinished,
        unpaired=pairing.unpaired,
        differing=differing_columns(pairs),
        # Without other pairs both have copies of one run, which was tested on the same images, known or not.
        no_verdict=no_verdict if pairs else None,
        pooled=_by_arm(tables, draws, rule, step),
        settings=[
            SettingVerdict(setting=setting, verdict=verdict)
            for setting, verdict in zip(by_setting, verdicts, strict=True)
        ],
        only_a=pairing.only_a,
        only_b=pairing.only_b,
    )


def compare_filters(a: Experiment, b: Experiment) -> list[FilterComparison]:
    """Compare the filters of each network that both experiments filtered with."""
    return [_filters(network, kept, b.filters[network]) for network, kept in a.filters.items() if network in b.filters]


def _filters(network: str, a: KeptImages, b: KeptImages) -> FilterComparison:
    either = len(a.paths | b.paths)
    return FilterComparison(
        network=network,
        share_a=len(a.paths) / max(1, a.n_total),
        share_b=len(b.paths) / max(1, b.n_total),
        jaccard=len(a.paths & b.paths) / either if either else 1.0,
        only_a=len(a.paths - b.paths),
        only_b=len(b.paths - a.paths),
    )


def _by_setting(pairs: Iterable[Pair]) -> dict[PairSetting, Differences]:
    """Group the differences by setting, in the order of the pairs."""
    tables: dict[PairSetting, dict[tuple[str, int], float]] = defaultdict(dict)
    for pair in pairs:
        tables[pair.key.setting][pair.key.draw, pair.key.seed] = pair.difference
    return dict(tables)


def _setting_draws(setting: PairSetting, draws: Sequence[str]) -> Sequence[str]:
    """Return the draws of a setting: those of the study, or one empty name without a filter."""
    return draws if setting.filter_network else [""]


def _table(differences: Differences, draws: Sequence[str]) -> NDArray[np.float64]:
    """Return the differences (draws, seeds) of the seeds that all draws have."""
    seeds = complete_seeds(differences, draws)
    return np.array([[differences[draw, seed] for seed in seeds] for draw in draws], dtype=np.float64)


def _by_arm(
    tables: Mapping[PairSetting, Differences], draws: Sequence[str], rule: DecisionRule, step: float
) -> list[ArmVerdict]:
    """Return each arm's verdict over its settings with every draw and seed of the arm, and the number of others."""
    arms = sorted({setting.arm for setting in tables}, key=lambda arm: (arm != "filtered", arm))
    by_arm = {arm: {setting: table for setting, table in tables.items() if setting.arm == arm} for arm in arms}
    complete = {arm: _complete(arm_tables, draws) for arm, arm_tables in by_arm.items()}
    columns = [np.stack(arrays, axis=-1) for arrays in complete.values() if arrays]
    verdicts = iter(pooled_verdicts(columns, rule, step=step))
    return [
        ArmVerdict(arm=arm, verdict=next(verdicts) if arrays else None, left_out=len(by_arm[arm]) - len(arrays))
        for arm, arrays in complete.items()
    ]


def _complete(tables: Mapping[PairSetting, Differences], draws: Sequence[str]) -> list[NDArray[np.float64]]:
    """Return the tables (draws, seeds) of one arm's settings that have all of its seeds."""
    n_seeds = len({seed for table in tables.values() for _, seed in table})
    arrays = [_table(table, _setting_draws(setting, draws)) for setting, table in tables.items()]
    return [array for array in arrays if array.shape[1] == n_seeds]
