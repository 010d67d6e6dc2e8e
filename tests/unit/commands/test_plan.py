"""`plan`: the stages and runs that would run, and their cost."""

import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.__main__ import main
from pipeline.commands.plan import jobs
from pipeline.commands.plan.size import (
    DataSize,
    StudyPlan,
    data_size,
    deduplicate_runs,
    n_kept_images,
    plan_from_ledger,
    plan_from_sizes,
)
from pipeline.commands.plan.speed import Speed, Workload
from pipeline.config.params import load_params
from pipeline.config.study_plan import build_plan, plan_hash
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from tests.fixtures.images import photo, split_tree, write_folder
from tests.fixtures.plan import DIGITS, SPEED, digits_params, preset
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import command, run, runs_of, write_project
from tests.fixtures.training import stage as run_stage

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network has the same made-up speed."""

    def made_up(workload: Workload, sizes: Collection[int], device: torch.device, *, seconds: float) -> Speed:
        return SPEED

    monkeypatch.setattr(jobs, "measure", made_up)


# The command


def _rows(shown: str) -> dict[str, list[str]]:
    """Return stage -> the table's row, also for the total, without empty columns."""
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
    plan = build_plan("fig5", params.studies["fig5"], params.train, params.report)
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
    assert (size.n_train, size.n_test, size.n_classes, size.source) == (20, 4, 2, "counted")
    skipped = plan_from_sizes(loaded, "unscaled", size, {}).skipped
    assert sum(skipped.values()) == 3
    # The table does not count skipped runs.
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


# Missing runs


def test_the_sizes_of_cifar_are_published() -> None:
    published = DataSize(n_train=50_000, n_test=10_000, n_classes=10, source="published")
    assert data_size(preset("paper").prepare, DataPaths(), prepared=False) == published


def test_digits_are_counted_as_prepare_splits_them() -> None:
    assert data_size(digits_params().prepare, DataPaths(), prepared=False) == DIGITS


def test_a_share_of_the_images_is_counted_as_prepare_takes_it(tmp_path: Path) -> None:
    path = str(write_folder(tmp_path, split_tree(n_train=10)))
    changes: dict[str, Any] = {"path": path, "test_size": None, "train_size": 0.5}
    for dataset, sizes in (("image_folder", (10, 4)), ("cifar10", (25_000, 10_000))):
        config = digits_params().prepare.model_copy(update={**changes, "dataset": dataset})
        size = data_size(config, DataPaths(), prepared=False)
        assert (size.n_train, size.n_test) == sizes


def test_decoding_is_timed_where_images_stay_in_their_files(tmp_path: Path) -> None:
    changes = {"dataset": "image_folder", "path": str(write_folder(tmp_path, split_tree())), "test_size": None}
    config = digits_params().prepare.model_copy(update=changes)
    assert data_size(config, DataPaths(), prepared=False).decode_s == 0
    files = data_size(config.model_copy(update={"storage": "files"}), DataPaths(), prepared=False)
    assert (files.n_train, files.n_test) == (8, 4)
    assert 0 < files.decode_s < 1


def test_labels_of_a_named_column_are_counted(tmp_path: Path) -> None:
    rows = [f"{number}.png,{'cat' if number % 2 else 'dog'}" for number in range(12)]
    table = "\n".join(["file_name,species", *rows]).encode()
    write_folder(tmp_path, {f"{number}.png": photo(number) for number in range(12)} | {"metadata.csv": table})
    changes = {"dataset": "image_folder", "path": str(tmp_path), "test_size": 0.5, "label_column": "species"}
    size = data_size(digits_params().prepare.model_copy(update=changes), DataPaths(), prepared=False)
    assert (size.n_train, size.n_test, size.n_classes) == (6, 6, 2)


def test_unknown_folder_is_bad_input() -> None:
    config = digits_params().prepare.model_copy(update={"dataset": "image_folder", "path": "nowhere"})
    with pytest.raises(InputError) as raised:
        data_size(config, DataPaths(), prepared=False)
    assert raised.value.key == "prepare.path"


def test_kept_images_follow_the_wanted_share() -> None:
    assert n_kept_images(preset("paper"), "resnet101", 50_000, DataPaths(), filtered=False) == 47_438
    eps = digits_params().model_copy(
        update={"filter": digits_params().filter.model_copy(update={"eps": 1.0, "drop_fraction": None})}
    )
    assert n_kept_images(eps, "resnet18", 1000, DataPaths(), filtered=False) == 1000


def test_every_cell_of_the_grid_is_missing_where_nothing_ran() -> None:
    params = digits_params()
    plan = plan_from_sizes(params, "digits", DIGITS, {NETWORK: 1366})
    assert (plan.total, len(plan.missing), plan.skipped) == (27, 27, {})


def test_runs_of_other_threads_are_not_shared() -> None:
    """Threads are part of a run's key on a CPU."""
    plan = plan_from_sizes(digits_params(), "digits", DIGITS, {NETWORK: 1366})
    plans = {"a": replace(plan, threads=2), "b": replace(plan, threads=2), "c": replace(plan, threads=1)}
    assert [len(plan.missing) for plan in deduplicate_runs(plans).values()] == [27, 0, 27]


def test_the_ledger_decides_which_runs_are_missing(tmp_path: Path) -> None:
    """After a real run none is; without one of its entries, one; with another rate, all."""
    data = write_project(tmp_path, study={"seeds": [0]})
    params = load_params(tmp_path / "params.yaml")
    work = WorkPaths(root=tmp_path / "work")
    assert len(plan_from_ledger(params, "tiny", data, work).missing) == 3
    assert run_stage("train", tmp_path) == 0
    assert plan_from_ledger(params, "tiny", data, work).missing == []
    next(work.ledger.glob("[0-9a-f]*")).rename(tmp_path / "lost")
    assert len(plan_from_ledger(params, "tiny", data, work).missing) == 1
    write_project(tmp_path, study={"seeds": [0], "learning_rates": [0.123]})
    assert len(plan_from_ledger(load_params(tmp_path / "params.yaml"), "tiny", data, work).missing) == 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_plan_counts_the_threads_of_the_processes_that_train(tmp_path: Path, workers: int) -> None:
    """`auto` shares the cores out, so two processes have other threads than this one, and no run is missing either."""
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


def test_a_skipped_batch_stops_neither_stage_nor_plan(tmp_path: Path) -> None:
    study = {"arms": ["filtered"], "seeds": [0], "budget": {"epochs": 1.0}, "recipe": _GROWING}
    data = write_project(tmp_path, study={**study, "batch_sizes": [20, 200]})
    for plan in _both_plans(tmp_path):
        assert [run.settings.batch_size for run in plan.missing] == [20]
        assert plan.skipped == {"batch 200 is larger than the 54 images of arm filtered": 1}
    assert run_stage("train", tmp_path) == 0
    assert [(row["batch_size"], row["status"]) for row in runs_of(data)] == [(20, "finished"), (200, "skipped")]


def test_stage_and_plan_refuse_the_same_warm_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = {"arms": ["filtered"], "budget": {"epochs": 1.0}, "recipe": _GROWING, "batch_sizes": [50, 200]}
    write_project(tmp_path, study=study)
    assert run_stage("train", tmp_path) == 2
    printed = printed_error(capsys.readouterr().err)
    assert printed.key == "schedule.warmup"
    params, data = load_params(tmp_path / "params.yaml"), DataPaths(root=tmp_path / "data")
    with pytest.raises(InputError) as with_files:
        plan_from_ledger(params, "tiny", data, WorkPaths(root=tmp_path / "work"))
    with pytest.raises(InputError) as with_sizes:
        plan_from_sizes(params, "tiny", data_size(params.prepare, data, prepared=True), n_kept={NETWORK: 54})
    assert str(with_files.value) == str(with_sizes.value) == str(printed)


def test_runs_that_studies_share_are_counted_once() -> None:
    """The full arm of table I's five studies is one, and so is what figs. 6 and 7 have at equal steps and epochs."""
    params = preset("paper")
    kept = {network: 47_000 + number for number, network in enumerate(params.networks)}
    size = DataSize(n_train=50_000, n_test=10_000, n_classes=10, source="counted")
    plans = {name: plan_from_sizes(params, name, size, kept) for name in params.studies}
    once = deduplicate_runs(plans)
    assert [once[f"table1_{network}"].shared for network in params.networks] == [0, 6, 6, 6, 6]
    # All arms at 256 and 0.005 with table1_resnet101; the full one at 64 and 128 with fig4, which has four seeds.
    assert once["fig6"].shared == 3 * 6 + 2 * 4
    assert once["fig6_epochs"].shared == 3 * 4 * 6
    assert once["fig7_epochs"].shared == 11 * 2 * 6
    assert sum(len(plan.missing) + plan.shared for plan in once.values()) == sum(
        len(plan.missing) for plan in plans.values()
    )
    names = list(params.studies)
    backwards = deduplicate_runs({name: plans[name] for name in reversed(names)})
    assert sum(plan.shared for plan in backwards.values()) == sum(plan.shared for plan in once.values())
