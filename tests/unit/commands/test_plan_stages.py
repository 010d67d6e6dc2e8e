"""Stages that `plan` prints as to run, against DVC's graph."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.commands.plan import size
from pipeline.config.params import load_params
from tests.fixtures.plan import digits_params, preset
from tests.fixtures.projects import name_networks

_ROOT = Path(__file__).parents[3]

# DVC's own graph: stage -> all stages that run before it.
_PRINT_GRAPH = """
import json, networkx
from dvc.repo import Repo
graph = Repo().index.graph
print(json.dumps({stage.addressing: [one.addressing for one in networkx.descendants(graph, stage)] for stage in graph}))
"""


def _ancestors(graph: size.Graph, stage: str) -> set[str]:
    result = set(graph[stage])
    while (grown := result | {other for one in result for other in graph[one]}) != result:
        result = grown
    return result


def test_graph_is_that_of_dvc_yaml() -> None:
    """Every data dependency in dvc.yaml is made by a stage from which the graph leads here."""
    described: dict[str, dict[str, Any]] = YAML(typ="safe").load(_ROOT / "dvc.yaml")["stages"]
    described = {name: entry.get("do", entry) for name, entry in described.items()}
    graph = size.stage_graph(preset("paper"))
    for stage in graph:
        ancestors = _ancestors(graph, stage)
        needed = {dep.split("/")[1] for dep in described[stage.split("@")[0]]["deps"] if dep.startswith("data/")}
        assert needed - {"overrides.csv", "${item.needs}"} <= {name.split("@")[0] for name in ancestors}, stage
    assert list(dict.fromkeys(name.split("@")[0] for name in graph)) == list(described)


def test_what_follows_a_changed_stage_runs_too() -> None:
    params = digits_params()
    graph = size.stage_graph(params)
    assert size.stages_to_run(graph, frozenset()) == frozenset()
    assert size.stages_to_run(graph, frozenset({"report"})) == {"report"}
    assert size.stages_to_run(graph, frozenset({"filter@resnet18"})) == {
        "filter@resnet18",
        "train@digits",
        "report",
    }
    assert size.stages_to_run(graph, frozenset({"prepare"})) == set(graph)
    assert size.stages_to_run(graph, None) == set(graph)


def test_a_study_follows_its_own_networks_filter_alone() -> None:
    params = preset("paper")
    graph = size.stage_graph(params)
    others = {f"train@table1_{name}" for name in params.networks if name != "resnet101"}
    full = {f"train@{name}" for name, study in params.studies.items() if set(study.arms) == {"full"}}
    assert full == {"train@fig4", "train@fig5", "train@batch_norm", "train@batch_norm_groups"}
    studies = {f"train@{name}" for name in params.studies} - others - full
    own = size.stages_to_run(graph, frozenset({"filter@resnet101"}))
    assert own == {"filter@resnet101", "report"} | studies
    another = size.stages_to_run(graph, frozenset({"reduce@resnet50"}))
    assert another == {"reduce@resnet50", "filter@resnet50", "train@table1_resnet50", "report"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["headline", "mccord", "paper"])
def test_dvc_orders_the_stages_as_the_graph_does(name: str, tmp_path: Path) -> None:
    """What DVC runs before each stage, as it reads dvc.yaml; the studies of the full arm run without any filter."""
    shutil.copy(_ROOT / "dvc.yaml", tmp_path)
    shutil.copy(_ROOT / "presets" / f"{name}.yaml", tmp_path / "params.yaml")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_GRAPH], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    before = {stage: set(others) for stage, others in json.loads(done.stdout).items()}
    params = preset(name)
    graph = size.stage_graph(params)
    assert before == {stage: _ancestors(graph, stage) for stage in graph}
    full = [name for name, study in params.studies.items() if set(study.arms) == {"full"}]
    assert full
    assert all(before[f"train@{name}"] == {"prepare"} for name in full)


@pytest.mark.slow
def test_dvc_names_the_stages_as_the_graph_does() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "dvc", "stage", "list", "--name-only"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a DVC repository")
    assert listed.stdout.split() == list(size.stage_graph(load_params(_ROOT / "params.yaml")))


@pytest.mark.slow
def test_dvc_takes_the_names_of_replicates(tmp_path: Path) -> None:
    shutil.copy(_ROOT / "dvc.yaml", tmp_path)
    shutil.copy(_ROOT / "tests" / "params.yaml", tmp_path / "params.yaml")
    name_networks(tmp_path / "params.yaml", ["resnet18-r1", "resnet18", "resnet18-r12"])
    dvc = [sys.executable, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    command = [*dvc, "stage", "list", "--name-only"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert listed.stdout.split() == list(size.stage_graph(load_params(tmp_path / "params.yaml")))


@pytest.mark.subprocess
def test_without_a_repository_dvc_cannot_say(tmp_path: Path) -> None:
    assert size.changed_stages(tmp_path) is None
