"""`python -m pipeline main-effects STUDY STUDY ...`: which choices of a recipe change the accuracy, and by how much.

The studies are a two-level factorial experiment: each settles several choices, such as LARS or SGD and 0 or 5 epochs of
warm-up, and all combinations of two choices are equally frequent. Settings that differ between the studies are its
factors, as the train stage recorded them. Those that always change together, such as an optimizer and its rate, are one
factor. Its effect is the mean top-1 at its other level minus that at the level of the first study, over all other
choices, with the seeds as blocks. presets/mccord-factorial.yaml is an example.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array
from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.artifacts.provenance import read_provenance
from pipeline.artifacts.recorded import StageFiles, check_with_note
from pipeline.artifacts.runs import check_run_values
from pipeline.artifacts.tables import read_parquet
from pipeline.commands import command_parser
from pipeline.config.study import PASSIVE_RECIPE_KEYS, PASSIVE_STUDY_KEYS
from pipeline.errors import InputError, printable
from pipeline.paths import DataPaths
from pipeline.stats.estimates import rounding_sd
from pipeline.stats.factorial import Factor, aliased_interactions, design_problem, find_factors, main_effects
from pipeline.stats.formatting import aligned_lines, p_value, plural, points
from pipeline.stats.hypothesis_tests import holm

_CONFIDENCE = 0.95
_SETTING = ("model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay")
# What changes no result: in the recipe, in a study, and in a study of the arm full alone.
_NO_FACTORS = (*PASSIVE_RECIPE_KEYS, "eval_batch_size")
_NO_STUDY_FACTORS = (
    *PASSIVE_STUDY_KEYS, "equal_across", "equivalent_batch", "filter_replicates", "looks", "recipe", "seeds",
)  # fmt: skip
_NO_FACTORS_OF_FULL = ("filter_network", "match", "relabel_above")
_PREPARED = "../prepare/"
_LONGEST_LEVEL = 40


@dataclass(frozen=True, kw_only=True)
class MainEffect:
    """The effect of one factor on top-1, in percentage points.

    Attributes:
        keys: the settings that change together; the first names the factor.
        low, high: its levels.
        effect: mean at the high level minus mean at the low one.
        interval: ends of the interval, of confidence 95 %.
        p, p_holm: two-sided p-value of the hypothesis of no effect, and adjusted for the number of factors.
        aliases: interactions of two other factors that the effect is mixed with.
    """

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
    """The main effects, and the runs they come from.

    Attributes:
        seeds: finished in all studies.
        left_out: runs for which a seed is left out, with the reason.
        n_planted: number of training labels changed on purpose; None for none.
    """

    studies: tuple[str, ...]
    seeds: tuple[int, ...]
    left_out: tuple[str, ...]
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
        InputError: the studies are no balanced design, or a study is not trained, damaged, of other images or several
            settings, or shares fewer than two seeds with the others.
    """
    arguments = make_parser().parse_args(argv)
    result = measure_effects(tuple(dict.fromkeys(arguments.studies)), DataPaths(root=arguments.data))
    if arguments.json:
        print(json.dumps(asdict(result), ensure_ascii=False, allow_nan=False))
    else:
        print("\n".join(text_lines(result)))
    return 0


def measure_effects(studies: tuple[str, ...], data: DataPaths) -> FactorialResult:
    """Read the studies and return the main effects of their factors.

    Raises:
        InputError: as `main`.
    """
    if len(studies) < 2:
        raise InputError(f"main-effects: one study, {studies[0]}, has no factor; give the studies of the design")
    for path in (path for study in studies for path in (data.runs(study), data.provenance("train", study))):
        if not path.exists():
            raise InputError(f"{path}: missing; give trained studies, or train this one by `dvc repro`")
    check_with_note(
        data,
        [StageFiles(stage="train", item=study, files=(data.runs(study), data.correct(study))) for study in studies],
    )
    factors = _read_factors(studies, data)
    runs = {study: _read_runs(study, data) for study in studies}
    seeds, left_out = _common_seeds(runs)
    if len(seeds) < 2:
        raise InputError(
            f"main-effects: {plural(len(seeds), 'seed')} finished in all studies, and a spread takes two; train more"
        )
    table = np.array([[runs[study][seed]["top1"] for study in studies] for seed in seeds], dtype=np.float64)
    return FactorialResult(
        studies=studies,
        seeds=seeds,
        left_out=left_out,
        n_planted=count_planted(data),
        effects=tuple(_effects(factors, table, rounding_sd(1 / _test_images(studies, data)))),
    )


def _read_factors(studies: Sequence[str], data: DataPaths) -> list[Factor]:
    records = [read_provenance(data.provenance("train", study)) for study in studies]
    settings = [
        read_settings(record["parameters"], data.provenance("train", study))
        for study, record in zip(studies, records, strict=True)
    ]
    for (one, of_one), (other, of_other) in itertools.combinations(zip(studies, settings, strict=True), 2):
        if of_one == of_other:
            raise InputError(f"main-effects: {one} and {other} have equal settings; give one of them")
    full = all(of_study.get("arms") == '["full"]' for of_study in settings)
    inputs = [
        {name: digest for name, digest in record["inputs"].items() if name.startswith(_PREPARED) or not full}
        for record in records
    ]
    for study, of_study in zip(studies, inputs, strict=True):
        if of_study != inputs[0]:
            raise InputError(
                f"main-effects: {study} was trained on other images than {studies[0]}; train both again by `dvc repro`"
            )
    try:
        factors = find_factors(settings)
    except ValueError as error:
        raise InputError(f"main-effects: {error}; give studies of two levels each") from None
    if problem := design_problem(factors):
        raise InputError(f"main-effects: {problem}; give all studies of a balanced design")
    return factors


def read_settings(parameters: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the settings that may be factors, by their keys in params.yaml, of what a train stage recorded.

    Args:
        path: of the record, for the message.

    Raises:
        InputError: a section is missing or no mapping.
    """
    train, study = (parameters.get(key) for key in ("train", "study"))
    if not isinstance(train, dict) or not isinstance(study, dict):
        raise InputError(f"{path}: holds no parameters of a training; run `dvc repro --force`")
    left_out = {*_NO_STUDY_FACTORS, *(_NO_FACTORS_OF_FULL if study.get("arms") == ["full"] else ())}
    recipe = {key: value for key, value in train.items() if key not in _NO_FACTORS}
    return dict(_leaves({**recipe, **{key: value for key, value in study.items() if key not in left_out}}, ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the values of a tree as text, without those that are None."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield printable(f"{prefix}{key}"), printable(value if isinstance(value, str) else json.dumps(value))


def _read_runs(study: str, data: DataPaths) -> dict[int, dict[str, Any]]:
    """Return seed -> row of the study's table.

    Raises:
        InputError: the table has values that no stage writes, no run, runs of several settings, or a seed twice.
    """
    path = data.runs(study)
    rows = read_parquet(path, [*_SETTING, "seed", "status", "top1"]).to_pylist()
    check_run_values(rows, path)
    if not rows:
        raise InputError(f"{path}: holds no run; train the study by `dvc repro`")
    settings = {tuple(row[name] for name in _SETTING) for row in rows}
    if len(settings) > 1:
        raise InputError(
            f"{path}: has runs of {len(settings)} settings; give a study of one arm, network, batch size, learning "
            "rate and weight decay"
        )
    runs = {row["seed"]: row for row in rows}
    if len(runs) < len(rows):
        raise InputError(f"{path}: has a seed twice; run `dvc repro --force`")
    return runs


def _common_seeds(runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the seeds that finished in all studies, and why others are left out."""
    planned = sorted(set().union(*runs.values()))
    reasons = {
        (study, seed): of_study[seed]["status"] if seed in of_study else "not planned"
        for seed in planned
        for study, of_study in runs.items()
        if seed not in of_study or of_study[seed]["status"] != "finished"
    }
    excluded = {seed for _, seed in reasons}
    left_out = tuple(f"{study}, seed {seed}: {reason}" for (study, seed), reason in reasons.items())
    return tuple(seed for seed in planned if seed not in excluded), left_out


def _test_images(studies: Sequence[str], data: DataPaths) -> int:
    widths = {study: open_array(data.correct(study), dtype=np.bool_, ndim=2).shape[1] for study in studies}
    n_images = int(widths[studies[0]])
    for study, width in widths.items():
        if width != n_images or not width:
            raise InputError(
                f"{data.correct(study)}: has {width} test images, and {studies[0]} has {n_images}; run `dvc repro "
                "--force`"
            )
    return n_images


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
    """Yield a table with a line for each factor, and what it is mixed with."""
    counted = f"{len(result.studies)} studies, {len(result.seeds)} seeds each"
    yield f"effect on top-1 in percentage points, from the level of {result.studies[0]} to the other; {counted}"
    for reason in result.left_out:
        yield f"left out of all studies: {reason}"
    if result.n_planted is not None:
        yield planted_note(result.n_planted)
    yield ""
    rows = [("factor", "from", "to", "effect", "95 % interval", "p", "p (Holm)")]
    for effect in result.effects:
        low, high = (_shortened(level) for level in (effect.low, effect.high))
        interval = f"{points(effect.interval[0])} to {points(effect.interval[1])}"
        p, p_holm = p_value(effect.p), p_value(effect.p_holm)
        rows.append((effect.keys[0], low, high, points(effect.effect), interval, p, p_holm))
    yield from aligned_lines(rows, left=3)
    for effect in result.effects:
        name, *others = effect.keys
        if others:
            yield f"{name} changes together with {', '.join(others)}"
        if effect.aliases:
            yield f"{name} is mixed with the interaction of {' and of '.join(effect.aliases)}"


def _shortened(level: str) -> str:
    """Return a level that fits into a column: lists and names of files may be long."""
    return level if len(level) <= _LONGEST_LEVEL else f"{level[: _LONGEST_LEVEL - 4]} ..."
