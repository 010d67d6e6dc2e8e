"""What plan says before a run: what would run, and what it would take."""

import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up import NETWORK, name_networks
from made_up_images import split_tree, write_folder
from made_up_training import runs_of, write_project
from made_up_training import stage as run_stage
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.commands.planning import cost, jobs, stages
from pipeline.commands.planning.cells import StudyPlan, plan_from_ledger, plan_from_sizes
from pipeline.commands.planning.data import DataSize, data_size, kept_images
from pipeline.commands.planning.speed import Speed, Workload, measure, thin_out
from pipeline.config.extract import ExtractConfig
from pipeline.config.params import Params, load_params
from pipeline.config.reduce import ReduceConfig
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.training.settings import TrainSettings

_ROOT = Path(__file__).parents[2]
_DIGITS = DataSize(n_train=1438, n_test=359, n_classes=10, source="counted")
_SPEED = Speed(
    parts={8: 0.1, 32: 0.2, 128: 0.8},
    update_s=0.01,
    evaluation_s=1e-3,
    build_s=0.1,
    activation_bytes=1e5,
    weight_bytes=45_000_000,
)


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network has the same made-up speed."""

    def made_up(workload: Workload, sizes: Collection[int], device: torch.device, *, seconds: float) -> Speed:
        return _SPEED

    monkeypatch.setattr(jobs, "measure", made_up)


def _preset(name: str) -> Params:
    return load_params(_ROOT / "presets" / f"{name}.yaml")


# The command


def test_paper_is_planned_without_data_or_network(
    no_measuring: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--params", str(_ROOT / "presets" / "paper.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "50,000 training and 10,000 test images of cifar10, 10 classes (published)" in shown
    rows = {line.split()[0]: line for line in shown.splitlines() if "to run" in line}
    assert len(rows) == 1 + 4 * 5 + 4 + 1
    assert " 840 of 840 " in rows["train@fig5"]
    total = next(line for line in shown.splitlines() if line.startswith("total"))
    assert " 1,544 " in total
    assert total.rstrip().endswith("GB")
    assert list(tmp_path.iterdir()) == []


def test_batches_larger_than_the_data_are_skipped_and_said_so(
    no_measuring: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = tmp_path / "params.yaml"
    text = (_ROOT / "presets" / "digits.yaml").read_text()
    params.write_text(text.replace("batch_sizes: [32, 128, 512]", "batch_sizes: [32, 2048]"))
    assert main(["plan", "--params", str(params)]) == 0
    shown = capsys.readouterr().out
    assert " 9 of 18 " in shown
    assert "train@digits: 9 cells are skipped: batch 2048 is larger than the 1366 images of arm filtered" in shown


def test_bad_parameters_and_missing_folders_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = tmp_path / "params.yaml"
    text = (_ROOT / "presets" / "digits.yaml").read_text()
    params.write_text(text.replace("dataset: digits", "dataset: image_folder\n  path: nowhere"))
    assert main(["plan", "--params", str(params)]) == 2
    assert capsys.readouterr().err == (
        "error: prepare.path: nowhere does not exist; give a folder of images or an archive of one\n"
    )


# Which stages


def test_graph_is_that_of_dvc_yaml() -> None:
    """Every data dependency in dvc.yaml is made by a stage from which the graph leads here."""
    described: dict[str, dict[str, Any]] = YAML(typ="safe").load(_ROOT / "dvc.yaml")["stages"]
    described = {name: entry.get("do", entry) for name, entry in described.items()}
    graph = stages.stage_graph(_preset("paper"))
    for stage, before in graph.items():
        ancestors = set(before)
        while (grown := ancestors | {other for one in ancestors for other in graph[one]}) != ancestors:
            ancestors = grown
        needed = {dep.split("/")[1] for dep in described[stage.split("@")[0]]["deps"] if dep.startswith("data/")}
        assert needed - {"overrides.csv"} <= {name.split("@")[0] for name in ancestors}, stage
    assert list(dict.fromkeys(name.split("@")[0] for name in graph)) == list(described)


def test_what_follows_a_changed_stage_runs_too() -> None:
    params = _preset("digits")
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
    params = _preset("paper")
    graph = stages.stage_graph(params)
    studies = {f"train@{name}" for name in params.studies}
    own = stages.stages_to_run(graph, frozenset({"filter@resnet101"}))
    assert own == {"filter@resnet101", "report"} | studies
    another = stages.stages_to_run(graph, frozenset({"reduce@resnet50"}))
    assert another == {"reduce@resnet50", "filter@resnet50", "report"}


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
    shutil.copy(_ROOT / "presets" / "digits.yaml", tmp_path / "params.yaml")
    name_networks(tmp_path / "params.yaml", ["resnet18-r1", "resnet18", "resnet18-r12"])
    dvc = [sys.executable, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    command = [*dvc, "stage", "list", "--name-only"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert listed.stdout.split() == list(stages.stage_graph(load_params(tmp_path / "params.yaml")))


def test_without_a_repository_dvc_cannot_say(tmp_path: Path) -> None:
    assert stages.changed_stages(tmp_path) is None


# Which cells


def test_digits_are_counted_as_prepare_splits_them() -> None:
    assert data_size(_preset("digits").prepare, DataPaths(), prepared=False) == _DIGITS


def test_decoding_is_timed_where_images_stay_in_their_files(tmp_path: Path) -> None:
    changes = {"dataset": "image_folder", "path": str(write_folder(tmp_path, split_tree())), "test_share": None}
    config = _preset("digits").prepare.model_copy(update=changes)
    assert data_size(config, DataPaths(), prepared=False).decode_s == 0
    files = data_size(config.model_copy(update={"storage": "files"}), DataPaths(), prepared=False)
    assert (files.n_train, files.n_test) == (8, 4)
    assert 0 < files.decode_s < 1


def test_unknown_folder_is_bad_input() -> None:
    config = _preset("digits").prepare.model_copy(update={"dataset": "image_folder", "path": "nowhere"})
    with pytest.raises(InputError, match="nowhere does not exist"):
        data_size(config, DataPaths(), prepared=False)


def test_kept_images_follow_the_wanted_share() -> None:
    assert kept_images(_preset("paper"), "resnet101", 50_000, DataPaths(), filtered=False) == 47_438
    eps = _preset("digits").model_copy(
        update={"filter": _preset("digits").filter.model_copy(update={"eps": 1.0, "drop_share": None})}
    )
    assert kept_images(eps, "resnet18", 1000, DataPaths(), filtered=False) == 1000


def test_every_cell_of_the_grid_is_missing_where_nothing_ran() -> None:
    params = _preset("digits")
    plan = plan_from_sizes(params, "digits", _DIGITS, {NETWORK: 1366})
    assert (plan.total, len(plan.missing), plan.skipped) == (27, 27, {})


def test_ledger_says_which_cells_are_left(tmp_path: Path) -> None:
    """After a real run none is; without one of its entries, one; with another rate, all."""
    data = write_project(tmp_path, study={"seeds": [0]})
    params = load_params(tmp_path / "params.yaml")
    work = WorkPaths(root=tmp_path / "work")
    assert len(plan_from_ledger(params, "tiny", data, work).missing) == 3
    assert run_stage("train", tmp_path) == 0
    assert plan_from_ledger(params, "tiny", data, work).missing == []
    next(work.cells.iterdir()).rename(tmp_path / "lost")
    assert len(plan_from_ledger(params, "tiny", data, work).missing) == 1
    write_project(tmp_path, study={"seeds": [0], "learning_rates": [0.123]})
    assert len(plan_from_ledger(load_params(tmp_path / "params.yaml"), "tiny", data, work).missing) == 3


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
    said = "schedule.warmup: 3 steps at batch 50, but the budget is 2 steps"
    assert capsys.readouterr().err.startswith(f"error: {said}; ")
    params, data = load_params(tmp_path / "params.yaml"), DataPaths(root=tmp_path / "data")
    with pytest.raises(InputError, match=said):
        plan_from_ledger(params, "tiny", data, WorkPaths(root=tmp_path / "work"))
    with pytest.raises(InputError, match=said):
        plan_from_sizes(params, "tiny", data_size(params.prepare, data, prepared=True), n_kept={NETWORK: 54})


# What it takes


def _settings(**changes: Any) -> TrainSettings:
    settings = jobs.finetune_run(_preset("digits"), "resnet18", _DIGITS).settings
    return replace(settings, **changes)


def test_time_between_measured_sizes_is_on_the_line_and_beyond_them_in_proportion() -> None:
    assert _SPEED.part_s(32) == 0.2
    assert _SPEED.part_s(20) == pytest.approx(0.15)
    assert _SPEED.part_s(1280) == pytest.approx(8.0)
    assert _SPEED.part_s(2) == pytest.approx(0.1)


def test_time_of_a_run_is_its_steps_and_what_every_run_has() -> None:
    def seconds(steps: int, workers: int = 1) -> float:
        settings = _settings(steps=steps, batch_size=128, simulated_workers=4)
        return cost.run_seconds(settings, _SPEED, _DIGITS, workers=workers)

    # Four simulated workers of 32 images in one pass of 128, 0.8 s, and one update.
    assert seconds(11) - seconds(1) == pytest.approx(10 * (0.8 + 0.01))
    assert seconds(11, workers=2) - seconds(1, workers=2) == pytest.approx(10 * (0.4 + 0.01))
    # Statistics over 2,048 images and 359 test images, forward alone.
    assert seconds(1) == pytest.approx(0.1 + 0.81 + (2048 + 359) * 1e-3, abs=0.01)


def test_small_groups_pass_together() -> None:
    """So that four simulated workers take one pass of their images, not four."""

    def sizes(batch: int, simulated: int, workers: int = 1, **changes: Any) -> list[int]:
        return cost.part_sizes(_settings(batch_size=batch, simulated_workers=simulated, **changes), workers)

    assert sizes(128, 4) == [128]
    assert sizes(128, 4, workers=2) == [64]
    assert sizes(128, 4, reduction="tree") == [32] * 4
    assert sizes(4096, 64) == [512] * 8
    assert sizes(4096, 2) == [2048] * 2  # a group is not cut
    assert sizes(4096, 2, bn_group=64) == [512] * 8


def test_memory_grows_with_what_passes_together_and_not_with_the_batch() -> None:
    def memory(batch: int, simulated: int) -> float:
        settings = _settings(batch_size=batch, simulated_workers=simulated)
        return cost.run_memory(settings, _SPEED, _DIGITS, workers=1)

    assert memory(1024, 1) - memory(512, 1) == pytest.approx(512 * 1e5)
    assert memory(4096, 8) == memory(8192, 16) == memory(512, 1)


@given(n=st.integers(100, 200_000), iterations=st.integers(1, 2000))
def test_maps_of_more_points_or_iterations_take_longer(n: int, iterations: int) -> None:
    assert cost.tsne_seconds(2 * n, iterations, 50) > cost.tsne_seconds(n, iterations, 50) or n < 10_000 <= 2 * n
    assert cost.tsne_seconds(n, iterations + 1, 50) > cost.tsne_seconds(n, iterations, 50)


def test_more_maps_cost_their_time_and_landmarks_save_it() -> None:
    def seconds(n_train: int, **keys: Any) -> float:
        size = replace(_DIGITS, n_train=n_train)
        return cost.reduce_cost(ReduceConfig.model_validate(keys), NETWORK, size, cores=2).seconds

    one, two, three = (seconds(5000, more_maps=({"random_state": 1}, {"theta": 0.2})[:more]) for more in (0, 1, 2))
    assert three - two == pytest.approx(two - one)
    assert two > 1.3 * one
    million = 1_281_167
    assert seconds(million) == seconds(million, landmarks=100_000) < 0.6 * seconds(million, landmarks="none")
    assert seconds(200_000) == seconds(200_000, landmarks="none")


def _extractor_costs(**finetune: Any) -> tuple[cost.Cost, cost.Cost]:
    """Of the stages finetune and extract of the digits preset."""
    params = _preset("digits")
    params = params.model_copy(update={"finetune": params.finetune.model_copy(update=finetune)})
    run = jobs.finetune_run(params, "resnet18", _DIGITS)
    stages_here = frozenset({"finetune@resnet18", "extract@resnet18"})
    costs = jobs.stage_costs(params, stages_here, _DIGITS, {"finetune@resnet18": [run]}, {run.workload: _SPEED})
    return costs["finetune@resnet18"], costs["extract@resnet18"]


def test_folds_multiply_the_runs_and_each_sees_fewer_images() -> None:
    """180 steps of 64 images, 0.4 s each, alone; of four folds four times 3/4 of them."""
    (one, seen), (four, seen_by_four) = _extractor_costs(), _extractor_costs(folds=4)
    steps = 8 * 1438 / 64
    assert four.seconds - one.seconds == pytest.approx(2 * steps * (0.4 + 0.01) + 3 * (0.1 + 2.4), rel=0.03)
    assert four.disk == 4 * one.disk
    assert four.memory - one.memory == 3 * _SPEED.weight_bytes
    passes = 3 * (1438 + 359) * 1e-3
    assert passes < seen_by_four.seconds - seen.seconds < 2 * passes
    assert seen_by_four.disk == seen.disk


def test_mirror_images_take_the_time_of_as_many_again() -> None:
    run = jobs.finetune_run(_preset("digits"), "resnet18", _DIGITS)
    plain, mirrored = (
        cost.extract_cost(run.settings, ExtractConfig(batch_size=8, mirror=mirror), _SPEED, _DIGITS, folds=1, workers=1)
        for mirror in (False, True)
    )
    assert mirrored.seconds - plain.seconds == pytest.approx((1438 + 359) * 1e-3)


def test_a_head_takes_passes_forward_and_no_steps() -> None:
    (head, seen), (whole, seen_as_well) = _extractor_costs(trained="head"), _extractor_costs()
    assert seen == seen_as_well
    assert (1438 + 359) * 1e-3 < head.seconds - 4.5 < 0.1 * whole.seconds
    more, _ = _extractor_costs(trained="head", folds=3)
    assert head.seconds < more.seconds < 3 * head.seconds


def test_a_replicate_costs_what_the_first_does() -> None:
    run, again = (jobs.finetune_run(_preset("digits"), name, _DIGITS) for name in ("resnet18", "resnet18-r2"))
    assert again.workload == run.workload
    assert again.settings == replace(run.settings, seed=run.settings.seed + 2)


def test_totals_add_time_and_disk_and_take_the_largest_memory() -> None:
    one = cost.Cost(seconds=1, memory=5, disk=10)
    two = cost.Cost(seconds=2, memory=3, disk=20)
    assert cost.total_cost([one, two]) == cost.Cost(seconds=3, memory=5, disk=30)
    assert cost.total_cost([]) == cost.Cost(seconds=0, memory=0, disk=0)


def test_weights_of_one_seed_count_in_the_ledger() -> None:
    params = _preset("digits")
    runs = {
        "train@digits": jobs.study_runs(params, "digits", plan_from_sizes(params, "digits", _DIGITS, {NETWORK: 1366}))
    }
    speeds = {run.workload: _SPEED for run in runs["train@digits"]}
    costs = jobs.stage_costs(params, frozenset({"train@digits"}), _DIGITS, runs, speeds)
    # 9 of the 27 cells, the best network and its copy in DVC's cache.
    assert costs["train@digits"].disk == pytest.approx((9 + 2) * 45e6, rel=0.01)


# Measuring


@given(sizes=st.sets(st.integers(1, 5000), min_size=1), at_most=st.integers(2, 6))
def test_thinned_sizes_keep_both_ends(sizes: set[int], at_most: int) -> None:
    chosen = thin_out(sizes, at_most)
    assert chosen == sorted(set(chosen) & sizes)
    assert (chosen[0], chosen[-1]) == (min(sizes), max(sizes))
    assert len(chosen) <= at_most


def test_a_network_is_measured_by_real_steps() -> None:
    threads = torch.get_num_threads()
    try:
        workload = Workload(network="resnet18", stem="imagenet", crop_size=16, n_classes=10, threads=1)
        speed = measure(workload, {2, 16, 100_000}, torch.device("cpu"), seconds=0.0)
    finally:
        torch.set_num_threads(threads)
    # The time was over after the first size, that nearest to 32.
    assert list(speed.parts) == [16]
    assert min(speed.parts[16], speed.update_s, speed.evaluation_s, speed.build_s) > 0
    assert speed.weight_bytes == pytest.approx(11.2e6 * 4, rel=0.02)
    assert 1e4 < speed.activation_bytes < 1e6
