"""The code reads every key of params.yaml."""

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, get_args

import openTSNE
import pytest
from pydantic import BaseModel

from pipeline.config import filter as scorers
from pipeline.config import optimization
from pipeline.config.params import Params
from pipeline.config.reduce import TsneConfig
from pipeline.config.study import Study
from pipeline.optim import OPTIMIZERS
from pipeline.schedules import SCHEDULES
from pipeline.scoring.registry import SCORERS
from tests.fixtures.source_tree import ROOT, modules, tree

# `model_dump` of these models goes to a function with parameters of the same names. Their key `name` selects the
# function, and the code reads `warmup` and its start separately.
_PASSED_ON: dict[type[BaseModel], Callable[..., Any]] = {
    optimization.AdamwConfig: OPTIMIZERS["adamw"],
    optimization.ConstantSchedule: SCHEDULES["constant"],
    optimization.CosineSchedule: SCHEDULES["cosine"],
    optimization.LambConfig: OPTIMIZERS["lamb"],
    optimization.LarsConfig: OPTIMIZERS["lars"],
    optimization.MuonConfig: OPTIMIZERS["muon"],
    optimization.OneCycleSchedule: SCHEDULES["one_cycle"],
    optimization.PolynomialSchedule: SCHEDULES["polynomial"],
    optimization.RadamConfig: OPTIMIZERS["radam"],
    optimization.SgdConfig: OPTIMIZERS["sgd"],
    optimization.StepSchedule: SCHEDULES["step"],
    TsneConfig: openTSNE.TSNE,
    scorers.AumScorer: SCORERS["aum"].values,
    scorers.CcsScorer: SCORERS["ccs"].values,
    scorers.CentroidScorer: SCORERS["centroid"].values,
    scorers.ConfidentLearningScorer: SCORERS["confident_learning"].values,
    scorers.DbscanScorer: SCORERS["dbscan"].values,
    scorers.El2nScorer: SCORERS["el2n"].values,
    scorers.EnsembleScorer: SCORERS["ensemble"].values,
    scorers.ForgettingScorer: SCORERS["forgetting"].values,
    scorers.GridScorer: SCORERS["grid"].values,
    scorers.HdbscanScorer: SCORERS["hdbscan"].values,
    scorers.KnnAgreementScorer: SCORERS["knn_agreement"].values,
    scorers.KnnDistanceScorer: SCORERS["knn_distance"].values,
    scorers.LabelOddsScorer: SCORERS["label_odds"].values,
    scorers.MarginScorer: SCORERS["margin"].values,
    scorers.MeanConfidenceScorer: SCORERS["mean_confidence"].values,
    scorers.RandomScorer: SCORERS["random"].values,
    scorers.SmoothedConfidenceScorer: SCORERS["smoothed_confidence"].values,
    scorers.SelfConfidenceScorer: SCORERS["self_confidence"].values,
}
_READ_SEPARATELY = {"name", "warmup", "warmup_start_factor"}
# A permission: the configuration is refused without it.
_PERMISSIONS = {"on_own_data"}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield all section models that a type contains, directly or indirectly."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation)
    for inner in get_args(annotation):
        yield from _models(inner)


@cache
def _attributes_read() -> frozenset[str]:
    """Return all attribute names that code outside config, which checks, and commands, which print, reads."""
    names = {
        node.attr
        for name, path in modules().items()
        if not name.startswith(("pipeline.config", "pipeline.commands"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    # Members of a model that read a key for other code.
    members = {
        Study.effective_recipe.__name__: {"recipe"},
        Study.budget_at.__name__: {"budget_by_batch_size"},
        Study.equivalent_sizes.__name__: {"equivalent_batch", "gradient_scale"},
        "filter_networks": {"filter_replicates"},
    }
    if "data/${item.needs}" in (ROOT / "dvc.yaml").read_text():
        names.add("needs")
    assert hasattr(Study, "filter_networks")
    return frozenset(names | {key for name, keys in members.items() if name in names for key in keys})


_ALL = sorted(set(_models(Params)), key=lambda model: model.__name__)


@pytest.mark.parametrize("model", _ALL, ids=lambda model: model.__name__)
def test_every_key_is_read(model: type[BaseModel]) -> None:
    keys = set(model.model_fields)
    if model in _PASSED_ON:
        keys &= _READ_SEPARATELY
    assert keys - _PERMISSIONS <= _attributes_read()


@pytest.mark.parametrize("model", _PASSED_ON, ids=lambda model: model.__name__)
def test_functions_accept_the_keys_that_they_get(model: type[BaseModel]) -> None:
    keys = set(model.model_fields) - _READ_SEPARATELY
    assert keys <= set(inspect.signature(_PASSED_ON[model]).parameters)


def test_every_parameter_of_opentsne_is_a_key() -> None:
    ours = {"callbacks", "callbacks_every_iters", "n_components", "knn_index", "verbose"}
    theirs = set(inspect.signature(openTSNE.TSNE).parameters)
    assert theirs - ours == set(TsneConfig.model_fields)


def test_the_models_of_all_sections_are_checked() -> None:
    """`_models` yields the models of every section."""
    assert {"Params", "PrepareConfig", "Study", "TrainConfig", "Duration", "Augmentation"} <= {m.__name__ for m in _ALL}
