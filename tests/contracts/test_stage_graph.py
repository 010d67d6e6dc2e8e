"""dvc.yaml, pipeline/stages/, pipeline/paths.py, the folders in data/ and the docs agree."""

import ast
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.provenance import import_closure
from pipeline.artifacts.stage_inputs import stage_inputs
from pipeline.config.params import Params, load_params
from pipeline.paths import TUNING_FIGURES, DataPaths
from tests.fixtures.source_tree import ROOT, modules, tree

_DVC: dict[str, Any] = YAML(typ="safe").load(ROOT / "dvc.yaml")
_STAGES: dict[str, dict[str, Any]] = {name: entry.get("do", entry) for name, entry in _DVC["stages"].items()}

# The item in dvc.yaml of a stage that runs once per network or per study.
_NETWORK, _STUDY = "${item.network}", "${key}"
_ITEMS = {"finetune": _NETWORK, "extract": _NETWORK, "reduce": _NETWORK, "filter": _NETWORK, "train": _STUDY}

# No stage depends on these: they cannot change what a stage writes. They handle arguments, words for people, the page
# of a running study, energy, names of files, and the sections of params.yaml that belong to other stages.
_PASSIVE = frozenset(
    {
        "pipeline",
        "pipeline.stages",
        "pipeline.stages.harness",
        "pipeline.stages.concurrent_runs",
        "pipeline.environment",
        "pipeline.live",
        "pipeline.run_log",
        "pipeline.energy",
        "pipeline.config.params",
        "pipeline.errors",
        "pipeline.paths",
        "pipeline.processes",
    }
)


# Sections whose models are not in the module of the same name.
_MODELS = {
    "extract": "pipeline.config.extractors",
    "networks": "pipeline.config.extractors",
    "dask": "pipeline.config.runtime",
    "report": "pipeline.config.runtime",
    "train": "pipeline.config.study",
    "studies": "pipeline.config.study",
}


def _paths(stage: str, *kinds: str) -> list[str]:
    """Return the paths of a stage's deps, outs or metrics; an entry may be a mapping with options."""
    entries = [entry for kind in kinds for entry in _STAGES[stage].get(kind, [])]
    return [next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries]


def test_stages_are_modules_of_the_same_name() -> None:
    harness = {f"pipeline.stages{name}" for name in ("", ".harness", ".parallel", ".study_runs", ".concurrent_runs")}
    assert {f"pipeline.stages.{name}" for name in _STAGES} == {
        name for name in modules() if name.startswith("pipeline.stages") and name not in harness
    }


def test_the_docs_and_make_clean_have_the_same_order() -> None:
    chain = re.search(r"^(\w+(?: -> \w+)+)$", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)
    assert chain is not None
    assert chain[1].split(" -> ") == list(_STAGES)
    folders = re.search(r"^STAGES := (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert folders is not None
    assert folders[1].split() == list(_STAGES)


@pytest.mark.parametrize("stage", _STAGES)
def test_command_runs_the_module_on_its_item(stage: str) -> None:
    argument = {_NETWORK: f" --network {_NETWORK}", _STUDY: f" --study {_STUDY}", None: ""}[_ITEMS.get(stage)]
    assert _STAGES[stage]["cmd"] == f"python -m pipeline.stages.{stage}{argument}"
    assert ("matrix" in _STAGES[stage]) == (_ITEMS.get(stage) == _NETWORK)


@pytest.mark.parametrize("stage", _STAGES)
def test_outputs_are_those_of_paths(stage: str) -> None:
    declared = _paths(stage, "outs", "metrics", "plots")
    assert len(set(declared)) == len(declared)
    assert set(declared) == {str(path) for path in _written_by(stage)}
    assert all(PurePosixPath(path).parts[:2] == ("data", stage) for path in declared)


def _written_by(stage: str) -> set[Path]:
    paths, network, study = DataPaths(), _NETWORK, _STUDY
    splits = ("train", "test")
    files = {
        "prepare": [paths.images(s) for s in splits] + [paths.manifest(s) for s in splits] + [paths.prepare_metrics],
        "finetune": [
            paths.extractor(network),
            paths.training_confidence(network),
            paths.training_dynamics(network),
            paths.finetune_metrics(network),
        ],
        "extract": [paths.features(network, s) for s in splits]
        + [paths.predictions(network, s) for s in splits]
        + [paths.features_by_network(network), paths.probabilities(network), paths.extract_metrics(network)],
        "reduce": [paths.embedding(network, s) for s in splits]
        + [paths.components(network), paths.embeddings(network), paths.reduce_metrics(network)],
        "filter": [
            paths.points(network),
            paths.kept(network),
            paths.dropped(network),
            paths.near_duplicates(network),
            paths.filter_metrics(network),
        ],
        "train": [
            paths.runs(study),
            paths.history(study),
            paths.correct(study),
            paths.train_metrics(study),
            paths.trained_weights(study),
        ],
        "report": [paths.report_page, paths.report_document, paths.summary, paths.report_metrics, paths.figures],
    }
    return {*files[stage], paths.provenance(stage, _ITEMS.get(stage))}


def test_every_path_belongs_to_a_stage_or_a_command() -> None:
    """`_written_by` and the commands cover every member of DataPaths."""
    paths = DataPaths()
    owned = {path for stage in _STAGES for path in _written_by(stage)}
    owned |= {paths.overrides, paths.resources, paths.costs_page, paths.archive_record, paths.live_metrics}
    # Commands write these for users.
    owned |= {paths.recursive_rounds(_NETWORK), paths.recursive_overrides(_NETWORK)}
    owned |= {paths.landscape(_STUDY), paths.landscape_figure(_STUDY)}
    tuned = (paths.leaderboard, paths.tuning_curves, paths.tuning_summary, paths.tuning_page, paths.tuned)
    owned |= {path(_STUDY) for path in (*tuned, paths.tuning_provenance)} | {paths.tuning_comparison}
    owned |= {paths.tuning_figure(_STUDY, figure) for figure in TUNING_FIGURES}
    for name in vars(DataPaths):
        if name.startswith("_") or name in ("root", "provenance"):
            continue
        member = getattr(paths, name)
        options: list[tuple[str, ...]] = [("train",), (_NETWORK,), (_STUDY,)] if callable(member) else []
        assert not options or any(member(*arguments) in owned for arguments in options), name
        assert options or member in owned, name


@pytest.mark.parametrize("stage", _STAGES)
def test_data_dependencies_are_made_by_earlier_stages(stage: str) -> None:
    earlier = list(_STAGES)[: list(_STAGES).index(stage)]
    made = {path for other in earlier for path in _paths(other, "outs", "metrics")}
    folders = {f"data/{other}" for other in earlier}
    for path in _paths(stage, "deps"):
        if path.startswith("data/") and path != str(DataPaths().overrides):
            # The key `needs` of a study names the stage that decides its images.
            possible = [path.replace("${item.needs}", needs) for needs in ("prepare", "filter", f"filter/{_NETWORK}")]
            assert set(possible) <= made | folders | {f"data/filter/{_NETWORK}"}, path


@pytest.mark.parametrize("stage", [*_STAGES][1:-1])
def test_data_dependencies_are_compared_with_what_was_recorded(stage: str) -> None:
    """The report depends on whole folders."""
    params, item = load_params(ROOT / "params.yaml"), "digits" if stage == "train" else "resnet18"
    params = params.model_copy(update={"filter": params.filter.model_copy(update={"near_duplicates": "report"})})
    checked = {
        str(path)
        for group in stage_inputs(stage, item, params, DataPaths())
        for path in (*group.files, *group.optional)
    }
    named = {path.replace(_NETWORK, item) for path in _paths(stage, "deps")}
    needed = {path for path in named if path.startswith("data/")} - {str(DataPaths().overrides)}
    if stage == "train":
        needed = needed - {"data/${item.needs}"} | {str(DataPaths().kept("resnet18"))}
    assert needed <= checked


@pytest.mark.parametrize("path", [ROOT / "params.yaml", *sorted((ROOT / "presets").glob("*.yaml"))], ids=str)
def test_studies_depend_only_on_stages_that_can_change_them(path: Path) -> None:
    """Templates of DVC cannot compute this dependency, so the parameter file states it."""
    for name, study in load_params(path).studies.items():
        assert study.needs == study.possible_needs[0], name


def _code_of(stage: str) -> set[Path]:
    """Return the code that decides the results: import closure, and models of the sections with their defaults."""
    roots = [f"pipeline.stages.{stage}", *(_MODELS.get(s, f"pipeline.config.{s}") for s in _sections_of(stage))]
    files = {path for root in roots for path in import_closure(root, exclude=_PASSIVE).values()}
    return {path for path in files if not _is_empty_package(path)}


def _sections_of(stage: str) -> set[str]:
    """Return the sections of params.yaml that a stage declares; the report declares the complete file."""
    declared = _STAGES[stage]["params"]
    if declared == [{"params.yaml": None}]:
        return set(Params.model_fields)
    return {key.split(".")[0] for key in declared}


def _is_empty_package(path: Path) -> bool:
    """Return whether a file is an `__init__` that contains only a docstring."""
    return path.name == "__init__.py" and len(tree(path).body) <= 1 and ast.get_docstring(tree(path)) is not None


@pytest.mark.parametrize("stage", _STAGES)
def test_dependencies_cover_the_import_closure(stage: str) -> None:
    declared = [ROOT / path for path in _paths(stage, "deps")]
    missing = [
        str(path.relative_to(ROOT))
        for path in sorted(_code_of(stage))
        if not any(path == dep or dep in path.parents for dep in declared)
    ]
    assert not missing, f"dvc.yaml, {stage}: add to deps"


@pytest.mark.parametrize("stage", _STAGES)
def test_no_code_dependency_is_unneeded(stage: str) -> None:
    code = _code_of(stage)
    for path in _paths(stage, "deps"):
        dep = ROOT / path
        if not path.startswith("data/"):
            assert dep.exists(), path
            assert any(file == dep or dep in file.parents for file in code), f"{stage} does not import {path}"


@pytest.mark.parametrize("stage", _STAGES)
def test_parameters_read_are_parameters_declared(stage: str) -> None:
    """DVC would not run the stage again after a change of a section that is read but not declared."""
    read = {
        node.attr
        for node in ast.walk(tree(modules()[f"pipeline.stages.{stage}"]))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("params")
    } & set(Params.model_fields)
    assert read <= _sections_of(stage)
    assert stage == "report" or read == _sections_of(stage)


def test_overrides_are_tracked_by_git_and_a_dependency_of_filter() -> None:
    assert "data/overrides.csv" in _paths("filter", "deps")
    assert "!overrides.csv" in (ROOT / "data" / ".gitignore").read_text().splitlines()
