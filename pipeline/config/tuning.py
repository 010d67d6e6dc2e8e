"""`tuning`: named searches for the best settings of a study. No stage depends on them."""

import copy
import itertools
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pipeline.config.base import Int, NonNegative, Positive, Section, Seed, UnitFraction, describe_validation_error
from pipeline.config.recipe import Recipe
from pipeline.config.study import Study, TrainConfig
from pipeline.errors import InputError

# Of these lists each trial takes one value; of the others, the first stands for all trials.
_LISTS = ("models", "batch_sizes", "learning_rates", "weight_decays")
_FIXED_LISTS = ("arms", "seeds")

# They say how a run is done, and decide nothing but how sums are rounded.
_NOT_SEARCHABLE = tuple(
    f"recipe.{key}"
    for key in (
        "checkpoint", "communication.bucket_mib", "communication.hierarchical", "communication.library",
        "communication.overlap", "compile", "eval_batch_size", "micro_batch", "noise_scale_steps", "reduction",
        "threads_per_worker", "timeout_seconds", "workers",
    )
)  # fmt: skip
_GRID_POINTS = 100_000  # all of them are listed before the first is tried

Bounds = Annotated[tuple[float, float], Field(min_length=2, max_length=2)]


class Domain(Section):
    """What a key may be: exactly one of `choices`, `uniform`, `log_uniform` or `integers`.

    Attributes:
        choices: values of any kind, sections too.
        uniform: [lowest, highest].
        log_uniform: [lowest, highest], above 0; the logarithm is uniform.
        integers: [lowest, highest], both included.
    """

    choices: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    uniform: Bounds | None = None
    log_uniform: Bounds | None = None
    integers: tuple[Int, Int] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in ("choices", "uniform", "log_uniform", "integers") if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of choices, uniform, log_uniform or integers")
        bounds = self.uniform or self.log_uniform or self.integers
        if bounds and bounds[0] >= bounds[1]:
            raise ValueError(f"{given[0]}: {list(bounds)} is no range; give [lowest, highest]")
        if self.log_uniform and self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform: {self.log_uniform[0]:g} has no logarithm; give bounds above 0")
        if self.choices and len({json.dumps(choice, sort_keys=True) for choice in self.choices}) < len(self.choices):
            raise ValueError("choices names a value twice; remove one")
        return self

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Every choice, or both ends of a range."""
        return self.choices or self.uniform or self.log_uniform or self.integers or ()

    @property
    def inner(self) -> tuple[float, ...]:
        """Of a range of real numbers one that is not whole, as most are, between its ends."""
        bounds = self.uniform or self.log_uniform
        if not bounds:
            return ()
        middle = (bounds[0] + bounds[1]) / 2
        return (min(middle + 0.5, (middle + bounds[1]) / 2) if middle.is_integer() else middle,)

    @property
    def size(self) -> float:
        """How many values there are."""
        if self.choices:
            return len(self.choices)
        return self.integers[1] - self.integers[0] + 1 if self.integers else math.inf


class RandomSampler(Section):
    """Every trial is drawn by itself."""

    name: Literal["random"]


class GridSampler(Section):
    """Every combination of `choices` and `integers` once, in random order."""

    name: Literal["grid"]


class TpeSampler(Section):
    """Tree-structured Parzen estimator (Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization).

    Attributes:
        startup_trials: so many must have ended before it learns from them; until then it draws at random.
    """

    name: Literal["tpe"]
    startup_trials: Positive = 10


Sampler = Annotated[RandomSampler | GridSampler | TpeSampler, Field(discriminator="name")]


class ThresholdPruner(Section):
    """After each epoch, out with every trial too far below the best at that epoch (Rand 2021).

    Attributes:
        amount: how far below it may be and stay.
        kind: of accuracy (`absolute`), or a share of the best accuracy (`relative`): at a best of 0.5 an
            amount of 0.1 keeps 0.40 and above, or 0.45.
    """

    name: Literal["lead"]
    amount: UnitFraction = 0.1
    kind: Literal["absolute", "relative"]


class SuccessiveHalvingPruner(Section):
    """The best of every `factor` trials go on, to `factor` times the epochs, until one is left or none can go."""

    name: Literal["successive_halving"]
    factor: Annotated[Int, Field(ge=2)] = 3


class HyperbandPruner(Section):
    """Successive halving several times, from many trials stopped early to few that all end (Li et al. 2018)."""

    name: Literal["hyperband"]
    factor: Annotated[Int, Field(ge=2)] = 3


class NoPruner(Section):
    """Every trial runs to the end."""

    name: Literal["none"]


PrunerConfig = Annotated[
    ThresholdPruner | SuccessiveHalvingPruner | HyperbandPruner | NoPruner, Field(discriminator="name")
]


class Tuning(Section):
    """One search, for the highest accuracy on the training images flagged `val` (`prepare.val_share`).

    Attributes:
        study: whose settings a trial has where `space` does not say otherwise; of its lists, the first values. Each
            trial trains on as many processes as the recipe's `workers` says, and on one where it says `auto`.
        space: what is searched: keys of the study, such as `learning_rates`, and of its recipe, such as
            `recipe.optimizer.momentum`, with the values that each may take.
        trials: how many; null for `grid`, which then takes all, and for `hyperband`, which has a number of its own.
        epochs: of a trial at most; they stand in place of the study's budget.
        rule: which trials end early.
        way: `parallel`, trials as tasks of `dask`; `round_robin`, in turn an epoch each in this process, with
            the same result; `sequential`, one after another to the end, each compared with those before it.
        places: trials that are in the race at a time; each that ends makes room for the next. Null: all of them.
        finish: eliminated trials, drawn at random, that are trained to the end all the same, to count those
            that would have overtaken the winner. Raised after a search has ended, it trains them from their first
            epoch.
        seed: of the sampler, and of that draw.
    """

    study: str
    space: Annotated[dict[str, Domain], Field(min_length=1)]
    sampler: Sampler
    trials: Positive | None = None
    epochs: Positive
    rule: PrunerConfig
    way: Literal["parallel", "round_robin", "sequential"] = "round_robin"
    places: Positive | None = None
    finish: NonNegative = 0
    seed: Seed = 0

    @model_validator(mode="after")
    def _keys_can_be_searched(self) -> Self:
        for key in self.space:
            if any(key == passive or key.startswith(f"{passive}.") for passive in _NOT_SEARCHABLE):
                raise ValueError(
                    f"space: {key} says how a run is done and decides no accuracy; set it in the study's recipe"
                )
            if key not in _LISTS and not (key.startswith("recipe.") and all(key.split("."))):
                raise ValueError(
                    f"space: {key} cannot be searched; use {', '.join(_LISTS)} or a key of the recipe, `recipe.<key>`"
                )
        endless = [key for key, domain in self.space.items() if domain.size == math.inf]
        if self.sampler.name == "grid" and endless:
            raise ValueError(f"space: {endless[0]} is a range, of which there is no grid; give choices or integers")
        points = math.prod(domain.size for domain in self.space.values())
        if self.sampler.name == "grid" and points > _GRID_POINTS:
            raise ValueError(
                f"space: a grid of {points:g} points is too large; give at most {_GRID_POINTS:,}, or random"
            )
        return self

    @model_validator(mode="after")
    def _number_of_trials_is_known(self) -> Self:
        size = math.prod(domain.size for domain in self.space.values())
        if self.rule.name == "hyperband":
            if self.trials is not None:
                raise ValueError("trials: hyperband has a number of its own; remove the key")
        elif self.trials is None and self.sampler.name != "grid":
            raise ValueError("trials: missing; say how many")
        elif self.trials is not None and self.sampler.name == "grid" and self.trials > size:
            raise ValueError(f"trials: {self.trials}, but the grid has {size:g} points; give at most as many")
        return self

    @model_validator(mode="after")
    def _rule_fits_the_way(self) -> Self:
        halves = self.rule.name in ("successive_halving", "hyperband")
        if halves and self.way == "sequential":
            raise ValueError(f"way: {self.rule.name} compares trials that stand side by side; use another way or rule")
        if self.places is not None and (halves or self.way == "sequential"):
            why = f"rule {self.rule.name}" if halves else "way sequential"
            raise ValueError(f"places: {why} has its own number of trials in the race; remove the key")
        return self

    @model_validator(mode="after")
    def _rule_drops_trials(self) -> Self:
        if self.rule.name in ("successive_halving", "hyperband"):
            factor = self.rule.factor
            for key, given in (("epochs", self.epochs), ("trials", self.n_trials)):
                if given is not None and given < factor:
                    raise ValueError(
                        f"{key}: {given} is less than rule.factor {factor}, so that {self.rule.name} would drop no "
                        f"trial; give at least {factor}, or a smaller factor"
                    )
        return self

    @model_validator(mode="after")
    def _sampler_can_learn(self) -> Self:
        """So many trials have ended when the last one draws its values; those of hyperband its schedule tells."""
        if self.sampler.name != "tpe" or self.trials is None:
            return self
        if self.rule.name == "successive_halving":
            raise ValueError(
                "sampler: tpe learns from trials that have ended, and successive_halving starts all at once; take "
                "random, or rule hyperband"
            )
        racing = 1 if self.way == "sequential" else self.places or self.trials
        ended = self.trials - racing
        if ended < self.sampler.startup_trials:
            raise ValueError(
                f"sampler: tpe learns once {self.sampler.startup_trials} trials have ended, and when the last of "
                f"{self.trials} starts, {max(ended, 0)} have; give fewer places or startup_trials, or take random"
            )
        return self

    @property
    def n_trials(self) -> int | None:
        """How many there will be; None for Hyperband, whose rule says."""
        if self.trials is None and self.sampler.name == "grid":
            return int(math.prod(domain.size for domain in self.space.values()))
        return self.trials

    def applied(self, study: Study, values: Mapping[str, Any]) -> dict[str, Any]:
        """The study of one trial, as plain values that are not checked yet.

        Args:
            study: the one that `self.study` names.
            values: of keys of `space`.
        """
        tree: dict[str, Any] = copy.deepcopy(study.model_dump(mode="json"))
        tree |= {key: tree[key][:1] for key in (*_LISTS, *_FIXED_LISTS)}
        tree |= {"filter_draws": 1, "looks": None, "budget": {"epochs": self.epochs}}
        apply_values(tree, values)
        return tree


def apply_values(study: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Write a trial's values into the plain values of a study, sections before their keys."""
    for key, value in sorted(values.items()):
        if key in _LISTS:
            study[key] = [value]
            continue
        *sections, last = key.split(".")
        tree = study
        for section in sections:
            if not isinstance(tree.get(section), dict):
                tree[section] = {}
            tree = tree[section]
        tree[last] = copy.deepcopy(value)


def check_space(key: str, tuning: Tuning, study: Study, train: TrainConfig) -> None:
    """Refuse values that no trial could have.

    Searches are held against their study when they are run, not with the rest of the file: a file whose study has
    another optimizer by now, such as tuned.yaml, trains as it is.

    Args:
        key: leads to the search.
        study: the one that `tuning.study` names.

    Raises:
        InputError: naming the key, the value and the mend.
    """
    _check_recipe(key, tuning, study, train)
    for name, domain in tuning.space.items():
        # A key of a section that is searched too has to fit one of the section's choices.
        sections = [other for other in tuning.space if name.startswith(f"{other}.") and tuning.space[other].choices]
        variants = [
            dict(zip(sections, chosen, strict=True))
            for chosen in itertools.product(*(tuning.space[section].choices or () for section in sections))
        ]
        for value in (*domain.extremes, *domain.inner):
            misfits = [_misfit(tuning, study, train, {**variant, name: value}) for variant in variants]
            if all(misfits):
                mend = "; give integers in place of the range" if value in domain.inner else ""
                raise InputError(f"{key}.space.{name}: {json.dumps(value)} does not fit: {misfits[0]}{mend}")


def _check_recipe(key: str, tuning: Tuning, study: Study, train: TrainConfig) -> None:
    """Refuse a study that no trial can stand for, where no key searched says otherwise."""
    if any(name.startswith(("recipe.post_local_sgd", "recipe.communication")) for name in tuning.space):
        return
    if said := process_requirement(study.effective_recipe(train)):
        raise InputError(f"{key}.study: {tuning.study} cannot be searched: {said}")


def _misfit(tuning: Tuning, study: Study, train: TrainConfig, values: Mapping[str, Any]) -> str:
    """Why a trial could not have `values`; empty if it could."""
    tree = tuning.applied(study, values)
    try:
        of_trial = Study.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        return describe_validation_error(error, tree, Study)
    try:
        recipe = of_trial.effective_recipe(train)
    except ValidationError as error:
        return f"recipe.{describe_validation_error(error, of_trial.recipe, TrainConfig)}"
    return process_requirement(recipe)


def process_requirement(recipe: Recipe) -> str:
    """Which key asks for processes that a trial does not have; empty if none does."""
    if recipe.post_local_sgd is not None:
        return (
            "post_local_sgd: a trial is laid down after every epoch, and workers with weights of their own can be so "
            "after an average alone; remove the key"
        )
    asked = recipe.communication
    if asked.hierarchical and recipe.workers not in ("auto", 1):
        return "communication.hierarchical: true, but the processes of a trial are on one machine; remove the key"
    if asked.compression != "none" and recipe.workers != recipe.simulated_workers:
        return (
            f"communication.compression: {asked.compression}, but each worker compresses a gradient of its own; set "
            f"workers: {recipe.simulated_workers} in the study's recipe, a process for each"
        )
    return ""
