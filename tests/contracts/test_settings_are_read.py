"""No key of params.yaml is accepted and then ignored."""

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

# These models go as a whole (`model_dump`) to a function with parameters of the same names; their
# `name` chooses it, and `warmup` and where it starts are read for themselves.
_HANDED_ON: dict[type[BaseModel], Callable[..., Any]] = {
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
    scorers.CentroidScorer: SCORERS["centroid"].values,
    scorers.ConfidentLearningScorer: SCORERS["confident_learning"].values,
    scorers.DbscanScorer: SCORERS["dbscan"].values,
    scorers.El2nScorer: SCORERS["el2n"].values,
    scorers.EnsembleScorer: SCORERS["ensemble"].values,
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
_READ_FOR_THEMSELVES = {"name", "warmup", "warmup_start_factor"}
# A permission: the configuration is refused without it.
_PERMISSIONS = {"on_own_data"}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """All section models that a type speaks of, and theirs."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation)
    for inner in get_args(annotation):
        yield from _models(inner)


@cache
def _attributes_read() -> frozenset[str]:
    """Names after a dot, wherever something is computed: commands only tell, config only checks."""
    found = {
        node.attr
        for name, path in modules().items()
        if not name.startswith(("pipeline.config", "pipeline.commands"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    # The members of a model that read a key for others.
    members = {Study.effective_recipe.__name__: {"recipe"}, "filter_networks": {"filter_replicates"}}
    if "data/${item.needs}" in (ROOT / "dvc.yaml").read_text():
        found.add("needs")
    assert hasattr(Study, "filter_networks")
    return frozenset(found | {key for name, keys in members.items() if name in found for key in keys})


_ALL = sorted(set(_models(Params)), key=lambda model: model.__name__)


@pytest.mark.parametrize("model", _ALL, ids=lambda model: model.__name__)
def test_every_key_is_read(model: type[BaseModel]) -> None:
    keys = set(model.model_fields)
    if model in _HANDED_ON:
        keys &= _READ_FOR_THEMSELVES
    assert keys - _PERMISSIONS <= _attributes_read()


@pytest.mark.parametrize("model", _HANDED_ON, ids=lambda model: model.__name__)
def test_what_is_handed_on_is_taken(model: type[BaseModel]) -> None:
    keys = set(model.model_fields) - _READ_FOR_THEMSELVES
    assert keys <= set(inspect.signature(_HANDED_ON[model]).parameters)


def test_every_parameter_of_opentsne_is_reachable() -> None:
    ours = {"callbacks", "callbacks_every_iters", "n_components", "knn_index", "verbose"}
    theirs = set(inspect.signature(openTSNE.TSNE).parameters)
    assert theirs - ours == set(TsneConfig.model_fields)


def test_the_sections_are_all_there() -> None:
    """The walk above found the models of every section."""
    assert {"Params", "PrepareConfig", "Study", "TrainConfig", "Duration", "Augmentation"} <= {m.__name__ for m in _ALL}
