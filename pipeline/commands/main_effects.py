"""`python -m pipeline main-effects STUDY STUDY ...`: which choices of a recipe change the accuracy, and by how much.

The studies are a two-level factorial experiment: each settles several choices, such as LARS or SGD and 0 or 5 epochs of
warm-up, and all combinations of two choices are equally frequent. Settings that differ between the studies are its
factors, as the train stage recorded them. Those that always change together, such as an optimizer and its rate, are one
factor. Its effect is the mean top-1 at one level minus the mean at the other, over all other choices, with the seeds as
blocks. presets/mccord-factorial.yaml is an example.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array
from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.artifacts.provenance import read_provenance
from pipeline.artifacts.recorded import StageFiles, check_with_note
from pipeline.artifacts.tables import read_parquet
from pipeline.commands import command_parser
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.stats.estimates import rounding_sd
from pipeline.stats.factorial import Factor, aliased_interactions, design_problem, find_factors, main_effects
from pipeline.stats.formatting import aligned_lines, p_value, plural, points
from pipeline.stats.hypothesis_tests import holm

_CONFIDENCE = 0.95
_SETTING = ("model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay")
# Of a study, besides its recipe. Its seeds are blocks, and its plan and files change no run.
_STUDY_KEYS = ("arms", "batch_sizes", "budget", "learning_rates", "models", "weight_decays")
# Settings of the recipe that change no result.
_NO_FACTORS = ("eval_batch_size", "checkpoint", "workers", "concurrent_runs")


@dataclass(frozen=True, kw_only=True)
class MainEffect:
    """The effect of one factor on top-1, in percentage points.

    Attributes:
        factor: name of its first setting.
        keys: the settings that change together.
        low, high: its levels.
        effect: mean at the high level minus mean at the low one.
        interval: ends of the interval, of confidence 95 %.
        p, p_holm: two-sided p-value of the hypothesis of no effect, and adjusted for the number of factors.
        aliases: interactions of two other factors whose effects it includes.
    """

    factor: str
    keys: tuple[str, ...]
    low: str
    high: str
    effect: float
    interval: tuple[float, float]
    p: float
    p_holm: float
    aliases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FactorialResult:
    """The main effects, and the runs that they are of.

    Attributes:
        seeds: finished in all studies.
        left_out: seeds that some study lacks or did not finish.
        n_planted: number of training labels changed on purpose; None for none.
    """

    studies: tuple[str, ...]
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    n_planted: int | None
    effects: tuple[MainEffect, ...]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("main-effects", __doc__, "data")
    parser.add_argument("studies", metavar="STUDY", nargs="+", help="trained studies, of one arm and setting each")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a line for each factor.

    Returns:
        0.

    Raises:
        InputError: the studies are no balanced design, or a study is not trained, damaged, of several settings, or
            shares fewer than two seeds with the others.
    """
    arguments = make_parser().parse_args(argv)
    result = measure_effects(tuple(dict.fromkeys(arguments.studies)), DataPaths(root=arguments.data))
    print(json.dumps(asdict(result), allow_nan=False) if arguments.json else "\n".join(text_lines(result)))
    return 0


def measure_effects(studies: tuple[str, ...], data: DataPaths) -> FactorialResult:
    """Read the studies and return the main effects of their factors.

    Raises:
        InputError: as `main`.
    """
    if len(studies) < 2:
        raise InputError(f"main-effects: one study, {studies[0]}, has no factor; give the studies of the design")
    for study in studies:
        if not data.runs(study).exists():
            raise InputError(f"{data.runs(study)}: missing; give trained studies, or run `dvc repro train@{study}`")
    check_with_note(
        data,
        [StageFiles(stage="train", item=study, files=(data.runs(study), data.correct(study))) for study in studies],
    )
    factors = _read_factors(studies, data)
    accuracies = [_read_accuracies(study, data) for study in studies]
    planned = set().union(*accuracies)
    seeds = sorted(seed for seed in planned if all(of_study.get(seed) is not None for of_study in accuracies))
    if len(seeds) < 2:
        raise InputError(
            f"main-effects: {plural(len(seeds), 'seed')} finished in all studies, and a spread takes two; train more"
        )
    table = [[of_study[seed] for of_study in accuracies] for seed in seeds]
    n_images = open_array(data.correct(studies[0]), dtype=np.bool_, ndim=2).shape[1]
    return FactorialResult(
        studies=studies,
        seeds=tuple(seeds),
        left_out=tuple(sorted(planned - set(seeds))),
        n_planted=count_planted(data),
        effects=tuple(_effects(factors, np.array(table, dtype=np.float64), rounding_sd(1 / n_images))),
    )


def _read_factors(studies: Sequence[str], data: DataPaths) -> list[Factor]:
    parameters = [read_provenance(data.provenance("train", study))["parameters"] for study in studies]
    try:
        factors = find_factors([read_settings(recorded) for recorded in parameters])
    except ValueError as error:
        raise InputError(f"main-effects: {error}; give studies of two levels each") from None
    if not factors:
        raise InputError(f"main-effects: no setting differs between {', '.join(studies)}; give other studies")
    if problem := design_problem(factors):
        raise InputError(f"main-effects: {problem}; give all studies of a balanced design")
    return factors


def read_settings(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that may be factors, by their keys in params.yaml, of what a train stage recorded."""
    recipe = {key: value for key, value in parameters.get("train", {}).items() if key not in _NO_FACTORS}
    study = {key: value for key, value in parameters.get("study", {}).items() if key in _STUDY_KEYS}
    return dict(_leaves(recipe | study, ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the values of a tree as text, without those that are None."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _read_accuracies(study: str, data: DataPaths) -> dict[int, float | None]:
    """Return seed -> top-1, 0 to 1; None if the run did not finish.

    Raises:
        InputError: the file is missing or damaged, or has runs of several settings.
    """
    rows = read_parquet(data.runs(study), [*_SETTING, "seed", "status", "top1"]).to_pylist()
    settings = {tuple(row[name] for name in _SETTING) for row in rows}
    if len(settings) != 1:
        raise InputError(
            f"{data.runs(study)}: has runs of {len(settings)} settings; give a study of one arm, network, batch size, "
            "learning rate and weight decay"
        )
    return {row["seed"]: row["top1"] if row["status"] == "finished" else None for row in rows}


def _effects(factors: Sequence[Factor], accuracies: NDArray[np.float64], rounding: float) -> Iterator[MainEffect]:
    """Yield the effects; `rounding` is the standard deviation of the rounding of one accuracy."""
    means = main_effects(accuracies, [factor.signs for factor in factors])
    means = means.with_rounding_error(2 * rounding / accuracies.size**0.5)
    low, high = means.interval(_CONFIDENCE)
    p_values = means.p_difference()
    adjusted = holm(p_values)
    names = [factor.keys[0] for factor in factors]
    for i, (factor, pairs) in enumerate(zip(factors, aliased_interactions(factors), strict=True)):
        yield MainEffect(
            factor=factor.name,
            keys=factor.keys,
            low=factor.low,
            high=factor.high,
            effect=100 * float(means.mean[i]),
            interval=(100 * float(low[i]), 100 * float(high[i])),
            p=float(p_values[i]),
            p_holm=float(adjusted[i]),
            aliases=tuple(f"{names[one]} × {names[other]}" for one, other in pairs),
        )


def text_lines(result: FactorialResult) -> Iterator[str]:
    """Yield a table with a line for each factor, and which interactions it includes."""
    counted = f"{len(result.studies)} studies, {len(result.seeds)} seeds each"
    yield f"effect on top-1 in percentage points, from the first level to the second; {counted}"
    if result.left_out:
        seeds = ", ".join(map(str, result.left_out))
        yield f"left out, since not finished in all studies: seed{'s' if len(result.left_out) > 1 else ''} {seeds}"
    if result.n_planted is not None:
        yield planted_note(result.n_planted)
    yield ""
    rows = [("factor", "from", "to", "effect", "95 % interval", "p", "p (Holm)")]
    for effect in result.effects:
        low, high = effect.interval
        interval = f"{points(low)} to {points(high)}"
        p_values = p_value(effect.p), p_value(effect.p_holm)
        rows.append((effect.factor, effect.low, effect.high, points(effect.effect), interval, *p_values))
    yield from aligned_lines(rows, left=3)
    for effect in result.effects:
        if effect.aliases:
            yield f"{effect.factor}: its effect includes that of the interaction {' and '.join(effect.aliases)}"
