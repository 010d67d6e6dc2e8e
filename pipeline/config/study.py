"""The sections `train` and `studies`, and the plan of a study: its decisions before the first run, with a hash."""

import itertools
import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from pipeline.config.base import Budget, Duration, KeyOfSize, NonNegativeFloat, Positive, PositiveFloat, Section, Seed
from pipeline.config.batch_sizes import TEST_ARMS, BatchSize, EquivalentBatch, check_largest, known_sizes, stated_sizes
from pipeline.config.extractors import NetworkName
from pipeline.config.recipe import ModelName, Recipe
from pipeline.config.torchvision_names import TorchvisionName

Arm = Literal["full", "filtered", "random", "random_uniform", "relabeled"]
KeepWeights = Literal["none", "first_seed", "all"]
XAxis = Literal["examples", "steps", "epochs"]

PaperFigure = Literal[
    "gahlot-2020-table1", "gahlot-2020-fig4", "gahlot-2020-fig5", "gahlot-2020-fig6", "gahlot-2020-fig7",
    "mccord-2021-fig5", "mccord-2021-fig6-7", "mccord-2021-fig8",
]  # fmt: skip
"""Published figures and tables to compare a study with; `pipeline/replication/published.py` has their numbers."""


class TrainConfig(Recipe):
    """The `train` section: the recipe of all studies, which the `recipe` of a study can change.

    Attributes:
        concurrent_runs: runs of a study that train at a time on this machine, each by one process with as many threads
            as one alone. `auto`: one on each GPU, and 1 without GPUs. With `workers: auto`, runs with batches of up to
            1,024 images train first, one GPU each; larger ones then use all GPUs. It changes no result. A study with
            `largest` needs 1, or `auto` with one process for each run.
    """

    # No part of plans and provenance: it is excluded where the section is written out.
    concurrent_runs: Annotated[Positive | Literal["auto"], Field(exclude=True)] = 1


Prose = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class PlanText(Section):
    """The prose of a preregistration; the other keys of the study are the rest of its plan.

    Attributes:
        question: the research question.
        hypotheses: what is expected, each as a statement that the runs can contradict.
        rate_selection: how learning rates and weight decays were chosen, on which images, before the first run.
    """

    question: Prose
    hypotheses: Annotated[tuple[Prose, ...], Field(min_length=1)]
    rate_selection: Prose


PASSIVE_STUDY_KEYS = (
    "accuracy_every", "keep_checkpoints", "keep_weights", "needs", "paper_figure", "plan", "x_axis",
)  # fmt: skip
"""Keys of a study that change no run."""

PASSIVE_RECIPE_KEYS = ("checkpoint", "concurrent_runs", "timeout_seconds", "workers")
"""Keys of a recipe that change how a run is executed, and not what it computes, except for rounding."""


class Study(Section):
    """One grid: every model x arm x batch size x learning rate x weight decay x seed is a run.

    Attributes:
        filter_network: whose kept images make the `filtered` arm and size the random ones.
        needs: the folder in data/ that the study depends on, which dvc.yaml reads: `filter/<network>` with one
            filter, `filter` with several, `prepare` with `arms: [full]`. `dvc repro` needs the key; null only if the
            stage is started by hand.
        filter_replicates: number of filters that the study compares: that of `filter_network` and of its replicates
            -r1, -r2, ... in `networks`. With one, results are conditional on it.
        models: the networks to train: those of this project, or `torchvision/NAME` for a classifier of torchvision that
            ends in a linear layer, which are all but SqueezeNets, such as `torchvision/vgg16`.
        arms: `full`; `filtered`; `random` (as many images of each class as the filter kept, sampled again for every
            seed); `random_uniform` (as many in all, regardless of class); `relabeled` (all images, with labels changed
            by hand, and by `relabel_above`). `filtered` has the labels changed by hand, the others those of the data.
        relabel_above: for the arm `relabeled`: an image that the filter drops gets its suggested label if that has a
            higher probability. Null: only decisions by hand (`relabel` in data/overrides.csv) change labels.
        batch_sizes: images of a global batch. `largest`: the most that pass forward and backward at once, on all
            processes together; the train stage finds and records it, and the runs are those of the number. On a CPU it
            needs a limit of memory, as containers and batch jobs have.
        looks: numbers of seeds, ascending, at which the primary comparison (`report.primary`) is tested; the study
            stops at the first look that decides. The last look has all `seeds`. Start at 6 or more: with fewer, skewed
            differences err more often. Null: all seeds are trained.
        budget: length of training of each run.
        budget_by_batch_size: batch size in quotes -> budget, where it differs from `budget`. Null: nowhere.
        equal_across: what the plan calls equal: `arms` compares the arms at each batch size alone; `sizes` requires
            that all batch sizes have one budget, too, equal in its unit. Null: the plan does not say.
        match: `steps` gives every arm the steps that the full data set needs for the budget; `epochs` gives every arm
            the same epochs, so a smaller arm takes fewer steps.
        equivalent_batch: adds runs of the filtered arm at smaller batches, and tests them against the full arm. Null:
            none.
        keep_weights: `first_seed` keeps the trained networks of the first seed, to publish them; `all` keeps those of
            every seed, for `python -m pipeline landscape`; `none` leaves best.pt empty. In .work/cells, a ResNet-18
            takes 45 MB per run. Runs that finished without the weights to keep are trained again.
        keep_checkpoints: keep a checkpoint of each run at each link of its hash chain, in .work/kept, so that
            `verify --retrain --segments` can train a part of the run. There is a link every 50,000 training images or
            sixteenth of the run, whichever is longer; a ResNet-18 with SGD takes 90 MB for each. Runs that finished
            without are not trained again.
        accuracy_every: interval of evaluations on the test images during training, with the weights that the run would
            have if it ended there. Each costs one pass over these images and changes no weight. Null: only after the
            last step.
        x_axis: horizontal axis of the curves during training: training images processed (`examples`), optimizer steps,
            or epochs of the arm. It changes no run.
        recipe: keys of the `train` section that differ in this study.
        paper_figure: the published figure that the report compares the study with; null: none. It changes no run.
        plan: the prose of the study's plan, which the train stage registers before the first run. The report then says
            when the plan was registered and what changed since. Null: no prose. It changes no run.
    """

    filter_network: NetworkName
    needs: str | None = None
    filter_replicates: Positive = 1
    models: Annotated[tuple[ModelName | TorchvisionName, ...], Field(min_length=1)]
    arms: Annotated[tuple[Arm, ...], Field(min_length=1)]
    relabel_above: Annotated[NonNegativeFloat, Field(lt=1)] | None = None
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1)]
    learning_rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    weight_decays: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    looks: Annotated[tuple[Annotated[Positive, Field(ge=2)], ...], Field(min_length=1)] | None = None
    budget: Budget
    budget_by_batch_size: dict[KeyOfSize, Budget] | None = None
    equal_across: Literal["arms", "sizes"] | None = None
    match: Literal["steps", "epochs"] = "steps"
    equivalent_batch: EquivalentBatch | None = None
    keep_weights: KeepWeights = "first_seed"
    keep_checkpoints: bool = False
    accuracy_every: Budget | None = None
    x_axis: XAxis = "examples"
    recipe: dict[str, Any] = Field(default={})
    paper_figure: PaperFigure | None = None
    plan: PlanText | None = None

    @model_validator(mode="after")
    def _no_repeats(self) -> Self:
        for key in ("models", "arms", "batch_sizes", "learning_rates", "weight_decays", "seeds"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ValueError(f"{key} names a value twice: {list(values)}")
        return self

    @model_validator(mode="after")
    def _relabel_above_has_an_arm(self) -> Self:
        if self.relabel_above is not None and "relabeled" not in self.arms:
            raise ValueError(
                f"relabel_above: {self.relabel_above} is for the arm relabeled, and arms are {list(self.arms)}; add "
                "relabeled to arms or remove relabel_above"
            )
        if self.relabel_above is None and "relabeled" in self.arms and self.filter_replicates > 1:
            raise ValueError(
                f"relabel_above: null gives the arm relabeled equal labels in all {self.filter_replicates} replicates "
                "of the filter, which are then one run; set relabel_above, or filter_replicates: 1"
            )
        return self

    @model_validator(mode="after")
    def _looks_fit(self) -> Self:
        looks = self.looks
        if looks is None:
            return self
        if any(later <= look for look, later in itertools.pairwise(looks)):
            raise ValueError(f"looks: {list(looks)} are not ascending; list them in ascending order")
        if looks[-1] != len(self.seeds):
            raise ValueError(f"looks: the last is {looks[-1]} and seeds has {len(self.seeds)}; make them equal")
        if list(self.seeds) != sorted(self.seeds):
            raise ValueError(f"looks: take the seeds in ascending order; sort seeds {list(self.seeds)}")
        if self.filter_replicates > 1:
            raise ValueError(
                f"looks: count seeds of one filter, and filter_replicates is {self.filter_replicates}; set it to 1 or "
                "remove looks"
            )
        return self

    @model_validator(mode="after")
    def _budgets_fit(self) -> Self:
        budgets, sizes = self.budget_by_batch_size or {}, stated_sizes(self.batch_sizes)
        others = {"budget_by_batch_size": self.budget_by_batch_size, "equivalent_batch": self.equivalent_batch}
        check_largest(self.batch_sizes, others)
        if unknown := [size for size in budgets if size not in sizes]:
            raise ValueError(f"budget_by_batch_size: {unknown[0]} is not one of batch_sizes {list(sizes)}")
        different = [size for size in sizes if self.budget_at(size) != self.budget_at(sizes[0])]
        if self.equal_across == "sizes" and different:
            raise ValueError(
                f"equal_across: sizes, but batch size {different[0]} has another budget than {sizes[0]}; "
                "write arms, or remove budget_by_batch_size"
            )
        return self

    @model_validator(mode="after")
    def _equivalent_batch_fits(self) -> Self:
        if self.equivalent_batch is None:
            return self
        if missing := [arm for arm in TEST_ARMS if arm not in self.arms]:
            raise ValueError(
                f"equivalent_batch: compares {' with '.join(TEST_ARMS)}, and arms are {list(self.arms)}; "
                f"add {missing[0]}"
            )
        sizes = self.equivalent_batch.batch_sizes or ()
        if unknown := [size for size in sizes if size not in self.batch_sizes]:
            raise ValueError(
                f"equivalent_batch.batch_sizes: {unknown[0]} is not one of batch_sizes {list(self.batch_sizes)}; "
                "add it there or remove it"
            )
        return self

    @model_validator(mode="after")
    def _needs_cover_the_arms(self) -> Self:
        if self.needs not in (None, *self.possible_needs):
            raise ValueError(
                f"needs: {self.needs} is not what arms {list(self.arms)} of filter_network {self.filter_network} and "
                f"filter_replicates {self.filter_replicates} need; write `needs: {self.possible_needs[0]}`"
            )
        return self

    @property
    def possible_needs(self) -> tuple[str, ...]:
        """Valid values of `needs`, the smallest dependency first."""
        unfiltered = ("prepare",) if set(self.arms) == {"full"} else ()
        one_filter = (f"filter/{self.filter_network}",) if unfiltered or self.filter_replicates == 1 else ()
        return (*unfiltered, *one_filter, "filter")

    @property
    def filter_networks(self) -> tuple[NetworkName, ...]:
        """The networks whose filters the study compares, `filter_network` first."""
        replicates = range(1, self.filter_replicates)
        return (self.filter_network, *(f"{self.filter_network}-r{number}" for number in replicates))

    def budget_at(self, batch_size: int) -> Duration:
        """Return the budget of the runs at one of the study's batch sizes."""
        return (self.budget_by_batch_size or {}).get(batch_size, self.budget)

    def equivalent_sizes(self, train: TrainConfig) -> dict[int, int]:
        """Return batch size of the full arm -> that of the filtered arm which it is tested against; may be empty.

        Raises:
            ValueError: as `EquivalentBatch.sizes`.
        """
        if self.equivalent_batch is None:
            return {}
        sizes = known_sizes(self.batch_sizes)
        return self.equivalent_batch.sizes(sizes, self.effective_recipe(train).simulated_workers)

    def effective_recipe(self, train: TrainConfig) -> TrainConfig:
        """Return the `train` section, updated with this study's `recipe` key by key and section by section.

        A section that names another variant (`schedule: {name: ...}`) replaces the old section, and a duration in one
        unit replaces one in another.
        """
        section = {**train.model_dump(mode="json"), "concurrent_runs": train.concurrent_runs}
        merged = _merge_overrides(section, self.recipe)
        return TrainConfig.model_validate_json(json.dumps(merged))


def _merge_overrides(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, change in changes.items():
        old = base.get(key)
        merged[key] = change
        if isinstance(old, dict) and isinstance(change, dict):
            same_variant = change.get("name", old.get("name")) == old.get("name")
            duration = len(change) > 0 and change.keys() <= Duration.model_fields.keys()
            merged[key] = _merge_overrides(old, change) if same_variant and not duration else change
    return merged
