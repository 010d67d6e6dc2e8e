"""What plan says before a run: what would run, and what it would take."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up import NETWORK, name_networks
from made_up_images import split_tree, write_folder
from made_up_plan import DIGITS, SPEED, digits_params, preset
from made_up_training import command, run, runs_of, write_project
from made_up_training import stage as run_stage
from printed_errors import printed_error
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.commands.planning import jobs, stages
from pipeline.commands.planning.cells import StudyPlan, counted_once, plan_from_ledger, plan_from_sizes
from pipeline.commands.planning.data import DataSize, data_size, kept_images
from pipeline.commands.planning.speed import Speed, Workload
from pipeline.config.params import load_params
from pipeline.config.plan import plan_hash, stated_plan
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network has the same made-up speed."""

    def made_up(workload: Workload, sizes: Collection[int], device: torch.device, *, seconds: float) -> Speed:
        return SPEED

    monkeypatch.setattr(jobs, "measure", made_up)


# The command


def _rows(shown: str) -> dict[str, list[str]]:
    """The cells of the table by stage, and of the total; cells that are empty are left out."""
    rows = [re.split(r"\s{2,}", line) for line in shown.splitlines()]
    return {row[0]: row for row in rows if len(row) > 2 and row[0] != "stage"}


def test_paper_is_planned_without_data_or_network(
    no_measuring: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--params", str(_ROOT / "presets" / "paper.yaml")]) == 0
    rows = _rows(capsys.readouterr().out)
    *stages, total = rows
    assert len(stages) == 1 + 4 * 5 + 14 + 1
    assert {rows[stage][1] for stage in stages} == {"to run"}
    assert rows["train@fig5"][2] == "840 of 840"
    assert rows[total][2] == "2,246"
    assert rows[total][-1].endswith(" GB")
    params = preset("paper")
    plan = stated_plan("fig5", params.studies["fig5"], params.train, params.report)
    assert rows["train@fig5"][-1] == plan_hash(plan)[:12]
    assert list(tmp_path.iterdir()) == []


def test_mccord_is_planned_on_whatever_tree_its_path_names(
    no_measuring: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = tmp_path / "params.yaml"
    text = (_ROOT / "presets" / "mccord.yaml").read_text()
    tree = write_folder(tmp_path / "images", split_tree(n_train=10))
    params.write_text(text.replace("path: imagenet #", f"path: {tree} #"))
    assert main(["plan", "--params", str(params)]) == 0
    loaded = load_params(params)
    size = data_size(loaded.prepare, DataPaths(), prepared=False)
    assert size == DataSize(n_train=20, n_test=4, n_classes=2, source="counted")
    skipped = plan_from_sizes(loaded, "unscaled", size, {}).skipped
    assert sum(skipped.values()) == 3
    # What is skipped is not among the cells of the table.
    assert _rows(capsys.readouterr().out)["train@unscaled"][2] == "0 of 3"


def test_batches_larger_than_the_data_are_skipped(
    no_measuring: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = tmp_path / "params.yaml"
    text = (_ROOT / "tests" / "params.yaml").read_text()
    params.write_text(text.replace("batch_sizes: [32, 128, 512]", "batch_sizes: [32, 2048]"))
    assert main(["plan", "--params", str(params)]) == 0
    assert _rows(capsys.readouterr().out)["train@digits"][2] == "9 of 18"


def test_bad_parameters_and_missing_folders_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = tmp_path / "params.yaml"
    text = (_ROOT / "tests" / "params.yaml").read_text()
    params.write_text(text.replace("dataset: digits", "dataset: image_folder\n  path: nowhere"))
    assert main(["plan", "--params", str(params)]) == 2
    shown = capsys.readouterr().err
    assert printed_error(shown).key == "prepare.path"
    assert shown.count("\n") == 1


# Which stages

# DVC's own graph: stage -> all stages that run before it.
_PRINT_GRAPH = """
import json, networkx
from dvc.repo import Repo
graph = Repo().index.graph
print(json.dumps({stage.addressing: [one.addressing for one in networkx.descendants(graph, stage)] for stage in graph}))
"""


def _ancestors(graph: stages.Graph, stage: str) -> set[str]:
    found = set(graph[stage])
    while (grown := found | {other for one in found for other in graph[one]}) != found:
        found = grown
    return found


def test_graph_is_that_of_dvc_yaml() -> None:
    """Every data dependency in dvc.yaml is made by a stage from which the graph leads here."""
    described: dict[str, dict[str, Any]] = YAML(typ="safe").load(_ROOT / "dvc.yaml")["stages"]
    described = {name: entry.get("do", entry) for name, entry in described.items()}
    graph = stages.stage_graph(preset("paper"))
    for stage in graph:
        ancestors = _ancestors(graph, stage)
        needed = {dep.split("/")[1] for dep in described[stage.split("@")[0]]["deps"] if dep.startswith("data/")}
        assert needed - {"overrides.csv", "${item.needs}"} <= {name.split("@")[0] for name in ancestors}, stage
    assert list(dict.fromkeys(name.split("@")[0] for name in graph)) == list(described)


def test_what_follows_a_changed_stage_runs_too() -> None:
    params = digits_params()
    graph = stages.stage_graph(params)
    assert stages.stages_to_run(graph, frozenset()) == frozenset()
    assert stages.stages_to_run(graph, frozenset({"report"})) == {"report"}
    assert stages.stages_to_run(graph, frozenset({"filter@resnet18"})) == {
        "filter@resnet18",
        "train@digits",
        "report",
    }
    assert stages.stages_to_run(graph, frozenset({"prepare"})) == set(graph)
    assert stages.stages_to_run(graph, None) == set(graph)


def test_a_study_follows_its_own_networks_filter_alone() -> None:
    params = preset("paper")
    graph = stages.stage_graph(params)
    others = {f"train@table1_{name}" for name in params.networks if name != "resnet101"}
    full = {f"train@{name}" for name, study in params.studies.items() if set(study.arms) == {"full"}}
    assert full == {"train@fig4", "train@fig5", "train@batch_norm", "train@batch_norm_groups"}
    studies = {f"train@{name}" for name in params.studies} - others - full
    own = stages.stages_to_run(graph, frozenset({"filter@resnet101"}))
    assert own == {"filter@resnet101", "report"} | studies
    another = stages.stages_to_run(graph, frozenset({"reduce@resnet50"}))
    assert another == {"reduce@resnet50", "filter@resnet50", "train@table1_resnet50", "report"}


@pytest.mark.parametrize("name", ["paper", "mccord", "headline"])
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
    graph = stages.stage_graph(params)
    assert before == {stage: _ancestors(graph, stage) for stage in graph}
    full = [name for name, study in params.studies.items() if set(study.arms) == {"full"}]
    assert full
    assert all(before[f"train@{name}"] == {"prepare"} for name in full)


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
    assert listed.stdout.split() == list(stages.stage_graph(load_params(_ROOT / "params.yaml")))


def test_dvc_takes_the_names_of_replicates(tmp_path: Path) -> None:
    shutil.copy(_ROOT / "dvc.yaml", tmp_path)
    shutil.copy(_ROOT / "tests" / "params.yaml", tmp_path / "params.yaml")
    name_networks(tmp_path / "params.yaml", ["resnet18-r1", "resnet18", "resnet18-r12"])
    dvc = [sys.executable, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    command = [*dvc, "stage", "list", "--name-only"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert listed.stdout.split() == list(stages.stage_graph(load_params(tmp_path / "params.yaml")))


@pytest.mark.subprocess
def test_without_a_repository_dvc_cannot_say(tmp_path: Path) -> None:
    assert stages.changed_stages(tmp_path) is None


# Which cells


def test_the_sizes_of_cifar_are_published() -> None:
    published = DataSize(n_train=50_000, n_test=10_000, n_classes=10, source="published")
    assert data_size(preset("paper").prepare, DataPaths(), prepared=False) == published


def test_digits_are_counted_as_prepare_splits_them() -> None:
    assert data_size(digits_params().prepare, DataPaths(), prepared=False) == DIGITS


def test_a_share_of_the_images_is_counted_as_prepare_takes_it(tmp_path: Path) -> None:
    path = str(write_folder(tmp_path, split_tree(n_train=10)))
    changes: dict[str, Any] = {"path": path, "test_share": None, "train_share": 0.5}
    for dataset, sizes in (("image_folder", (10, 4)), ("cifar10", (25_000, 10_000))):
        config = digits_params().prepare.model_copy(update={**changes, "dataset": dataset})
        size = data_size(config, DataPaths(), prepared=False)
        assert (size.n_train, size.n_test) == sizes


def test_decoding_is_timed_where_images_stay_in_their_files(tmp_path: Path) -> None:
    changes = {"dataset": "image_folder", "path": str(write_folder(tmp_path, split_tree())), "test_share": None}
    config = digits_params().prepare.model_copy(update=changes)
    assert data_size(config, DataPaths(), prepared=False).decode_s == 0
    files = data_size(config.model_copy(update={"storage": "files"}), DataPaths(), prepared=False)
    assert (files.n_train, files.n_test) == (8, 4)
    assert 0 < files.decode_s < 1


def test_unknown_folder_is_bad_input() -> None:
    config = digits_params().prepare.model_copy(update={"dataset": "image_folder", "path": "nowhere"})
    with pytest.raises(InputError) as raised:
        data_size(config, DataPaths(), prepared=False)
    assert raised.value.key == "prepare.path"


def test_kept_images_follow_the_wanted_share() -> None:
    assert kept_images(preset("paper"), "resnet101", 50_000, DataPaths(), filtered=False) == 47_438
    eps = digits_params().model_copy(
        update={"filter": digits_params().filter.model_copy(update={"eps": 1.0, "drop_share": None})}
    )
    assert kept_images(eps, "resnet18", 1000, DataPaths(), filtered=False) == 1000


def test_every_cell_of_the_grid_is_missing_where_nothing_ran() -> None:
    params = digits_params()
    plan = plan_from_sizes(params, "digits", DIGITS, {NETWORK: 1366})
    assert (plan.total, len(plan.missing), plan.skipped) == (27, 27, {})


def test_runs_of_other_threads_are_not_shared() -> None:
    """Threads are part of a run's key on a CPU."""
    plan = plan_from_sizes(digits_params(), "digits", DIGITS, {NETWORK: 1366})
    plans = {"a": replace(plan, threads=2), "b": replace(plan, threads=2), "c": replace(plan, threads=1)}
    assert [len(plan.missing) for plan in counted_once(plans).values()] == [27, 0, 27]


def test_ledger_says_which_cells_are_left(tmp_path: Path) -> None:
    """After a real run none is; without one of its entries, one; with another rate, all."""
    data = write_project(tmp_path, study={"seeds": [0]})
    params = load_params(tmp_path / "params.yaml")
    work = WorkPaths(root=tmp_path / "work")
    assert len(plan_from_ledger(params, "tiny", data, work).missing) == 3
    assert run_stage("train", tmp_path) == 0
    assert plan_from_ledger(params, "tiny", data, work).missing == []
    next(work.cells.glob("[0-9a-f]*")).rename(tmp_path / "lost")
    assert len(plan_from_ledger(params, "tiny", data, work).missing) == 1
    write_project(tmp_path, study={"seeds": [0], "learning_rates": [0.123]})
    assert len(plan_from_ledger(load_params(tmp_path / "params.yaml"), "tiny", data, work).missing) == 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_plan_counts_the_threads_of_the_processes_that_train(tmp_path: Path, workers: int) -> None:
    """`auto` shares the cores out, so two processes have other threads than this one, and leave no cell either."""
    train = {"workers": workers, "simulated_workers": 2, "threads_per_worker": "auto"}
    study = {"seeds": [0], "arms": ["full"]}
    data, work = write_project(tmp_path, study=study, train=train), WorkPaths(root=tmp_path / "work")
    done = run(command("train", tmp_path))
    assert done.returncode == 0, done.stderr
    assert plan_from_ledger(load_params(tmp_path / "params.yaml"), "tiny", data, work).missing == []
    write_project(tmp_path, study=study, train={**train, "threads_per_worker": 1 + len(os.sched_getaffinity(0))})
    assert len(plan_from_ledger(load_params(tmp_path / "params.yaml"), "tiny", data, work).missing) == 1


_GROWING = {
    "schedule": {"name": "constant", "warmup": {"epochs": 0.9}},
    "lr_scaling": {"rule": "legw", "reference_batch_size": 20},
}


def _both_plans(folder: Path) -> list[StudyPlan]:
    params, data = load_params(folder / "params.yaml"), DataPaths(root=folder / "data")
    size = data_size(params.prepare, data, prepared=True)
    return [
        plan_from_ledger(params, "tiny", data, WorkPaths(root=folder / "work")),
        plan_from_sizes(params, "tiny", size, n_kept={NETWORK: 54}),
    ]


def test_a_skipped_batch_stops_neither_stage_nor_plan_whatever_its_warm_up(tmp_path: Path) -> None:
    study = {"arms": ["filtered"], "seeds": [0], "budget": {"epochs": 1.0}, "recipe": _GROWING}
    data = write_project(tmp_path, study={**study, "batch_sizes": [20, 200]})
    for plan in _both_plans(tmp_path):
        assert [cell.settings.batch_size for cell in plan.missing] == [20]
        assert plan.skipped == {"batch 200 is larger than the 54 images of arm filtered": 1}
    assert run_stage("train", tmp_path) == 0
    assert [(row["batch_size"], row["status"]) for row in runs_of(data)] == [(20, "finished"), (200, "skipped")]


def test_stage_and_plan_refuse_the_same_warm_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = {"arms": ["filtered"], "budget": {"epochs": 1.0}, "recipe": _GROWING, "batch_sizes": [50, 200]}
    write_project(tmp_path, study=study)
    assert run_stage("train", tmp_path) == 2
    said = printed_error(capsys.readouterr().err)
    assert said.key == "schedule.warmup"
    params, data = load_params(tmp_path / "params.yaml"), DataPaths(root=tmp_path / "data")
    with pytest.raises(InputError) as with_files:
        plan_from_ledger(params, "tiny", data, WorkPaths(root=tmp_path / "work"))
    with pytest.raises(InputError) as with_sizes:
        plan_from_sizes(params, "tiny", data_size(params.prepare, data, prepared=True), n_kept={NETWORK: 54})
    assert str(with_files.value) == str(with_sizes.value) == str(said)


def test_cells_that_studies_share_are_counted_once() -> None:
    """The full arm of table I's five studies is one, and so is what figs. 6 and 7 have at equal steps and epochs."""
    params = preset("paper")
    kept = {network: 47_000 + number for number, network in enumerate(params.networks)}
    size = DataSize(n_train=50_000, n_test=10_000, n_classes=10, source="counted")
    plans = {name: plan_from_sizes(params, name, size, kept) for name in params.studies}
    once = counted_once(plans)
    assert [once[f"table1_{network}"].shared for network in params.networks] == [0, 6, 6, 6, 6]
    # All arms at 256 and .005 with table1_resnet101; the full one at 64 and 128 with fig4, which has four seeds.
    assert once["fig6"].shared == 3 * 6 + 2 * 4
    assert once["fig6_epochs"].shared == 3 * 4 * 6
    assert once["fig7_epochs"].shared == 11 * 2 * 6
    assert sum(len(plan.missing) + plan.shared for plan in once.values()) == sum(
        len(plan.missing) for plan in plans.values()
    )
    names = list(params.studies)
    backwards = counted_once({name: plans[name] for name in reversed(names)})
    assert sum(plan.shared for plan in backwards.values()) == sum(plan.shared for plan in once.values())
