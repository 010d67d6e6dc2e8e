"""What the paired runs of two experiments say: a verdict over all settings, one for each, and the filters."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.comparison.experiments import Experiment, KeptImages, Row
from pipeline.commands.comparison.pairing import ColumnDifference, Pair, PairSetting, differing_columns, pair_runs
from pipeline.stats.replicates import complete_seeds
from pipeline.stats.verdict import DecisionRule, Verdict, pooled_verdicts, verdicts_by_setting

Differences = Mapping[tuple[str, int], float]
"""Of one setting: (draw of the filter, seed) -> B - A in top-1, -1 to 1."""


@dataclass(frozen=True, kw_only=True)
class SettingVerdict:
    """B against A at one setting; Holm's adjustment covers all settings of the study."""

    setting: PairSetting
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class ArmVerdict:
    """B against A in one arm, which a change need not touch as it does another; Holm's adjustment covers the arms.

    Attributes:
        verdict: over all complete settings; None without any.
        left_out: settings that lack a seed or draw which others of the arm have.
    """

    arm: str
    verdict: Verdict | None
    left_out: int


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """One study of both experiments.

    Attributes:
        runs_a, runs_b: cells, whether they finished or not.
        pairs: finished in both, and not the same run.
        same_runs: pairs of which both are the same cell (one fingerprint). They are in no test.
        unfinished, unpaired: as `Pairing` has them.
        differing: what differs within the pairs beside the results.
        no_verdict: why accuracies of A and B cannot be compared, the end of a sentence; then there is no verdict below.
        pooled: of each arm that has pairs, `filtered` first.
        settings: those with a seed that all draws of the filter have.
        only_a, only_b: settings of one experiment alone.
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
    """What one network's filter kept in both experiments, images told apart by path.

    Attributes:
        share_a, share_b: kept, 0 to 1.
        jaccard: images kept in both over images kept in either, 0 to 1.
        only_a, only_b: images kept in one alone.
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
    """Pair the runs of a study and judge B against A.

    Args:
        step: of which all accuracies are multiples, 1 / test images.
        no_verdict: why accuracies of A and B cannot be compared; None where they can.

    Raises:
        InputError: as `pair_runs`.
    """
    pairing = pair_runs(a, b)
    pairs = [pair for pair in pairing.pairs if not pair.is_one_run]
    tables = {} if no_verdict else _by_setting(pairs)
    draws = sorted({draw for found in tables.values() for draw, _ in found if draw})
    by_setting = {setting: _table(found, _setting_draws(setting, draws)) for setting, found in tables.items()}
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
        # One and the same run was tested on one set of images, whatever is known of it.
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
    """One entry for each network that both experiments filtered with."""
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
    """In the order of the pairs."""
    found: dict[PairSetting, dict[tuple[str, int], float]] = defaultdict(dict)
    for pair in pairs:
        found[pair.key.setting][pair.key.draw, pair.key.seed] = pair.difference
    return dict(found)


def _setting_draws(setting: PairSetting, draws: Sequence[str]) -> Sequence[str]:
    """Those of the study's draws that the setting has; runs without a filter have one that is named so."""
    return draws if setting.filter_network else [""]


def _table(found: Differences, draws: Sequence[str]) -> NDArray[np.float64]:
    """(draws, seeds), of the seeds that all draws have."""
    seeds = complete_seeds(found, draws)
    return np.array([[found[draw, seed] for seed in seeds] for draw in draws], dtype=np.float64)


def _by_arm(
    tables: Mapping[PairSetting, Differences], draws: Sequence[str], rule: DecisionRule, step: float
) -> list[ArmVerdict]:
    """Each arm's verdict over its settings that have every draw and seed of the arm, and the number of the others."""
    arms = sorted({setting.arm for setting in tables}, key=lambda arm: (arm != "filtered", arm))
    of_arm = {arm: {setting: found for setting, found in tables.items() if setting.arm == arm} for arm in arms}
    complete = {arm: _complete(found, draws) for arm, found in of_arm.items()}
    columns = [np.stack(found, axis=-1) for found in complete.values() if found]
    verdicts = iter(pooled_verdicts(columns, rule, step=step))
    return [
        ArmVerdict(arm=arm, verdict=next(verdicts) if found else None, left_out=len(of_arm[arm]) - len(found))
        for arm, found in complete.items()
    ]


def _complete(tables: Mapping[PairSetting, Differences], draws: Sequence[str]) -> list[NDArray[np.float64]]:
    """The tables (draws, seeds) of one arm's settings that have all of its seeds."""
    n_seeds = len({seed for found in tables.values() for _, seed in found})
    found = [_table(of_setting, _setting_draws(setting, draws)) for setting, of_setting in tables.items()]
    return [table for table in found if table.shape[1] == n_seeds]
