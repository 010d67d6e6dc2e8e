"""The `tuning` section: named hyperparameter searches for the settings of a study. No stage depends on it."""

import copy
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Int, NonNegative, Positive, Section, Seed, UnitFraction
from pipeline.config.study import Study

# Each trial takes one value of these lists, and the first value of the others.
_LISTS = ("models", "batch_sizes", "learning_rates", "weight_decays")
_FIXED_LISTS = ("arms", "seeds")

# These keys change how a run is executed and how sums are rounded, and nothing else.
_NOT_SEARCHABLE = tuple(
    f"recipe.{key}"
    for key in (
        "checkpoint", "communication.bucket_mib", "communication.hierarchical", "communication.library",
        "communication.overlap", "compile", "eval_batch_size", "isa", "micro_batch", "noise_scale_steps", "reduction",
        "threads_per_worker", "timeout_seconds", "workers",
    )
)  # fmt: skip
_GRID_POINTS = 100_000  # the complete grid is in memory
_Count = Annotated[Positive, Field(le=1_000_000)]  # lists of all trials, and of all epochs, are in memory

Bounds = Annotated[tuple[float, float], Field(min_length=2, max_length=2)]


class Domain(Section):
    """The values of a key: exactly one of `choices`, `uniform`, `log_uniform` or `int_uniform`.

    Attributes:
        choices: values of any type, including sections.
        uniform: [lowest, highest].
        log_uniform: [lowest, highest], above 0; the logarithm is uniform.
        int_uniform: [lowest, highest], both included.
    """

    choices: Annotated[tuple[Any, ...], Field(min_length=1)] | None = None
    uniform: Bounds | None = None
    log_uniform: Bounds | None = None
    int_uniform: tuple[Int, Int] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [
            kind for kind in ("choices", "uniform", "log_uniform", "int_uniform") if getattr(self, kind) is not None
        ]
        if len(kinds) != 1:
            raise ValueError("give exactly one of choices, uniform, log_uniform or int_uniform")
        bounds = self.uniform or self.log_uniform or self.int_uniform
        if bounds and bounds[0] >= bounds[1]:
            raise ValueError(f"{kinds[0]}: {list(bounds)} is no range; give [lowest, highest]")
        if self.log_uniform and self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform: {self.log_uniform[0]:g} has no logarithm; give bounds above 0")
        if self.choices and len({json.dumps(choice, sort_keys=True) for choice in self.choices}) < len(self.choices):
            raise ValueError("choices names a value twice; remove one")
        return self

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Every choice, or both ends of a range."""
        return self.choices or self.uniform or self.log_uniform or self.int_uniform or ()

    @property
    def inner(self) -> tuple[float, ...]:
        """A non-integer value inside a range of real numbers; empty for other domains."""
        bounds = self.uniform or self.log_uniform
        if not bounds:
            return ()
        middle = (bounds[0] + bounds[1]) / 2
        return (min(middle + 0.5, (middle + bounds[1]) / 2) if middle.is_integer() else middle,)

    @property
    def size(self) -> float:
        """Number of values; infinite for a range of real numbers."""
        if self.choices:
            return len(self.choices)
        return self.int_uniform[1] - self.int_uniform[0] + 1 if self.int_uniform else math.inf


class RandomSampler(Section):
    """Each trial is sampled independently."""

    name: Literal["random"]


class GridSampler(Section):
    """Every combination of `choices` and `int_uniform` once, in random order."""

    name: Literal["grid"]


class TpeSampler(Section):
    """Tree-structured Parzen estimator (Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization).

    Attributes:
        n_startup_trials: ended trials that it needs before it learns from them; until then it samples at random.
    """

    name: Literal["tpe"]
    n_startup_trials: Positive = 10


Sampler = Annotated[RandomSampler | GridSampler | TpeSampler, Field(discriminator="name")]


class ThresholdPruner(Section):
    """Prune, after each epoch, every trial that is too far below the best at that epoch (Rand 2021).

    Attributes:
        amount: largest distance below the best at which a trial continues.
        kind: `absolute`, in accuracy, or `relative`, as a fraction of the best accuracy. With a best of 0.5, an amount
            of 0.1 keeps 0.40 and above, or 0.45 and above.
    """

    name: Literal["threshold"]
    amount: UnitFraction = 0.1
    kind: Literal["absolute", "relative"]


class SuccessiveHalvingPruner(Section):
    """The best 1 / `factor` of the trials continue to `factor` times the epochs, until one trial is left."""

    name: Literal["successive_halving"]
    factor: Annotated[Int, Field(ge=2)] = 3


class HyperbandPruner(Section):
    """Successive halving with several budgets, from many trials with few epochs to few with all (Li et al. 2018)."""

    name: Literal["hyperband"]
    factor: Annotated[Int, Field(ge=2)] = 3


class NoPruner(Section):
    """Every trial runs to the end."""

    name: Literal["none"]


PrunerConfig = Annotated[
    ThresholdPruner | SuccessiveHalvingPruner | HyperbandPruner | NoPruner, Field(discriminator="name")
]


class Tuning(Section):
    """One search, for the highest accuracy on the training images flagged `val` (`prepare.val_size`).

    Attributes:
        study: the study whose settings a trial has, except those in `space`; of its lists, the first values. A trial
            trains on as many processes as the recipe's `workers`, and on one with `auto`.
        space: the values of each searched key: keys of the study, such as `learning_rates`, and of its recipe, such
            as `recipe.optimizer.momentum`.
        trials: number of trials. Null for `grid`, which then takes all points, and for `hyperband`, which sets it.
        epochs: of a trial at most; they replace the study's budget.
        pruner: which trials end early.
        scheduler: `parallel`: trials are tasks of `dask`. `round_robin`: one epoch of each trial in turn in this
            process, with the same result. `sequential`: one trial after another to the end, each compared with those
            before it.
        max_concurrent_trials: trials that run at a time; the next starts when one ends. Null: all trials.
        resume_pruned: pruned trials, sampled at random, that are trained to the end anyway, to count those that
            would have overtaken the winner. If raised after a search has ended, it trains them from their first
            epoch.
        seeds: number of the study's seeds, from the first on, that every trial trains. Its accuracy is their mean, and
            it fails if one of them does.
        seed: of the sampler, and of the choice of pruned trials.
    """

    study: str
    space: Annotated[dict[str, Domain], Field(min_length=1)]
    sampler: Sampler
    trials: _Count | None = None
    epochs: _Count
    pruner: PrunerConfig
    scheduler: Literal["parallel", "round_robin", "sequential"] = "round_robin"
    max_concurrent_trials: Positive | None = None
    resume_pruned: NonNegative = 0
    seeds: Positive = 1
    seed: Seed = 0

    @model_validator(mode="after")
    def _keys_can_be_searched(self) -> Self:
        for key in self.space:
            if any(key == passive or key.startswith(f"{passive}.") for passive in _NOT_SEARCHABLE):
                raise ValueError(
                    f"space: {key} changes how a run is executed, not its accuracy; set it in the study's recipe"
                )
            if key not in _LISTS and not (key.startswith("recipe.") and all(key.split("."))):
                raise ValueError(
                    f"space: {key} cannot be searched; use {', '.join(_LISTS)} or a key of the recipe, `recipe.<key>`"
                )
        endless = [key for key, domain in self.space.items() if domain.size == math.inf]
        if self.sampler.name == "grid" and endless:
            raise ValueError(f"space: {endless[0]} is a range, of which there is no grid; give choices or int_uniform")
        points = math.prod(domain.size for domain in self.space.values())
        if self.sampler.name == "grid" and points > _GRID_POINTS:
            raise ValueError(
                f"space: a grid of {points:g} points is too large; give at most {_GRID_POINTS:,}, or random"
            )
        return self

    @model_validator(mode="after")
    def _trials_are_given(self) -> Self:
        size = math.prod(domain.size for domain in self.space.values())
        if self.pruner.name == "hyperband":
            if self.trials is not None:
                raise ValueError("trials: hyperband sets the number; remove the key")
        elif self.trials is None and self.sampler.name != "grid":
            raise ValueError("trials: missing; add it")
        elif self.trials is not None and self.sampler.name == "grid" and self.trials > size:
            raise ValueError(f"trials: {self.trials}, but the grid has {size:g} points; give at most as many")
        return self

    @model_validator(mode="after")
    def _pruner_fits_the_scheduler(self) -> Self:
        halves = self.pruner.name in ("successive_halving", "hyperband")
        if halves and self.scheduler == "sequential":
            raise ValueError(
                f"scheduler: {self.pruner.name} compares trials at the same epoch; use another scheduler or pruner"
            )
        if self.max_concurrent_trials is not None and (halves or self.scheduler == "sequential"):
            why = f"pruner {self.pruner.name}" if halves else "scheduler sequential"
            raise ValueError(f"max_concurrent_trials: {why} sets the number of concurrent trials; remove the key")
        return self

    @model_validator(mode="after")
    def _pruner_drops_trials(self) -> Self:
        if self.pruner.name in ("successive_halving", "hyperband"):
            factor = self.pruner.factor
            for key, value in (("epochs", self.epochs), ("trials", self.n_trials)):
                if value is not None and value < factor:
                    raise ValueError(
                        f"{key}: {value} is less than pruner.factor {factor}, so that {self.pruner.name} would drop no "
                        f"trial; give at least {factor}, or a smaller factor"
                    )
        return self

    @model_validator(mode="after")
    def _sampler_can_learn(self) -> Self:
        """Compare the trials that have ended when the last one is sampled with those that TPE needs.

        Hyperband is checked with its schedule, in `tuning/search.py`.
        """
        if self.sampler.name != "tpe" or self.trials is None:
            return self
        if self.pruner.name == "successive_halving":
            raise ValueError(
                "sampler: tpe learns from trials that have ended, and successive_halving starts all at once; use "
                "random, or pruner hyperband"
            )
        concurrent = 1 if self.scheduler == "sequential" else self.max_concurrent_trials or self.trials
        ended = self.trials - concurrent
        if ended < self.sampler.n_startup_trials:
            raise ValueError(
                f"sampler: tpe learns from {self.sampler.n_startup_trials} ended trials, and when the last of "
                f"{self.trials} starts, {max(ended, 0)} have; lower max_concurrent_trials or n_startup_trials, or use "
                "random"
            )
        return self

    @property
    def n_trials(self) -> int | None:
        """Number of trials; None for Hyperband, whose schedule sets it."""
        if self.trials is None and self.sampler.name == "grid":
            return int(math.prod(domain.size for domain in self.space.values()))
        return self.trials

    def trial_study(self, study: Study, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the study of one trial, as plain values without validation.

        Args:
            study: the study that `self.study` names.
            values: key of `space` -> value.
        """
        tree: dict[str, Any] = copy.deepcopy(study.model_dump(mode="json"))
        tree |= {key: tree[key][:1] for key in (*_LISTS, *_FIXED_LISTS)}
        tree |= {"filter_replicates": 1, "looks": None, "equivalent_batch": None}
        tree |= {"budget": {"epochs": self.epochs}, "budget_by_batch_size": None, "equal_across": None}
        apply_values(tree, values)
        return tree


def apply_values(study: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Write a trial's values into the plain values of a study, sections before their keys."""
    for key, value in sorted(values.items()):
        if key in _LISTS:
            study[key] = [value]
            if key == "batch_sizes" and study.get("budget_by_batch_size"):
                budgets = study["budget_by_batch_size"]
                study["budget_by_batch_size"] = {size: budgets[size] for size in budgets if size == str(value)} or None
            continue
        *sections, last = key.split(".")
        tree = study
        for section in sections:
            if not isinstance(tree.get(section), dict):
                tree[section] = {}
            tree = tree[section]
        tree[last] = copy.deepcopy(value)
