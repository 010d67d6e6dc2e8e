"""The report's section on steps and images to a training loss and to an accuracy."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.params import Params, check_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.reporting.comparison_tables import convergence_sections
from pipeline.reporting.figures import figure_files, study_charts
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.render import report_content
from pipeline.reporting.summary import build_summary
from tests.fixtures.printed_errors import key_within
from tests.fixtures.report import params_tree, write_artifacts
from tests.fixtures.unsaved_figures import figures_unsaved


def _params(*, accuracy_every: dict[str, Any] | None = None, **targets: float | None) -> Params:
    tree = params_tree()
    tree["report"] |= targets
    for study in tree["studies"].values():
        study["accuracy_every"] = accuracy_every
    return check_params(tree, source="params.yaml")


def _sections(folder: Path, params: Params) -> list[dict[str, Any]]:
    data = DataPaths(root=folder)
    write_artifacts(data, params)
    (study,) = report_content(params, build_summary(load_report_inputs(params, data)))["studies"]
    found: list[dict[str, Any]] = study["convergence_sections"]
    return found


def test_each_arm_has_a_row_and_each_comparison_a_sentence(tmp_path: Path) -> None:
    (section,) = _sections(tmp_path, _params(target_train_loss=1.0))
    table, sentences = section["table"], section["sentences"]
    assert list(table.columns) == ["batch size", "arm", "steps", "images", "runs that reached it"]
    assert len(table.rows) == 9
    # Of 2.3 / step + seed / 10 the records are at steps 1, 15 and 45.
    assert {row[-1] for row in table.rows} == {"3 of 3"}
    assert len(sentences) == 3, "one of them for both tests"


def test_an_accuracy_stands_before_the_loss_and_is_interpolated(tmp_path: Path) -> None:
    accuracy, loss = _sections(tmp_path, _params(target_train_loss=1.0, target_top1=0.08, accuracy_every={"steps": 1}))
    assert (accuracy["target"], loss["target"]) == ("a test accuracy of 8 %", "a training loss of 1 nats")
    # Measured 0.01 after step 1 and 0.15 after step 15, so that 0.08 is half way.
    assert {row[2] for row in accuracy["table"].rows} == {"8"}


@pytest.mark.slow
@pytest.mark.parametrize("accuracy_every", [None, {"steps": 1}])
def test_curves_over_training_are_plotted_where_they_were_measured(
    tmp_path: Path, accuracy_every: dict[str, Any] | None
) -> None:
    params, data = _params(accuracy_every=accuracy_every), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    inputs = load_report_inputs(params, data)
    summary = build_summary(inputs)
    (study,) = summary["studies"]
    with figures_unsaved():
        files = {name for name, _ in figure_files(inputs, summary)}
    for name in ("progress", "test_loss"):
        drawn = (name in study_charts(study), f"{study['name']}.{name}.svg" in files)
        assert drawn == (accuracy_every is not None,) * 2


@pytest.mark.parametrize(("target", "said"), [(0.001, "0 of 3"), (9.0, "0 of 3, 3 before the first record")])
def test_what_was_not_reached_or_too_soon_is_said(tmp_path: Path, target: float, said: str) -> None:
    params = _params(target_train_loss=target)
    (section,) = _sections(tmp_path, params)
    assert {row[-1] for row in section["table"].rows} == {said}
    (study,) = build_summary(load_report_inputs(params, DataPaths(root=tmp_path)))["studies"]
    assert {ratio["mean"] for ratio in study["convergence"][0]["ratios"]} == {None}


def test_what_was_not_asked_for_is_not_said(tmp_path: Path) -> None:
    assert _sections(tmp_path, _params(target_train_loss=None)) == []


def test_a_target_that_no_study_measures_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        _params(target_top1=0.5)
    assert key_within(refused.value, "params.yaml") == "report.target_top1"


def test_workers_on_their_own_have_no_accuracy() -> None:
    tree = params_tree()
    (name,) = tree["studies"]
    recipe = {"post_local_sgd": {"start": {"steps": 2}, "period": 2}}
    tree["studies"][name] |= {"accuracy_every": {"steps": 1}, "recipe": recipe}
    with pytest.raises(InputError) as refused:
        check_params(tree, source="params.yaml")
    assert key_within(refused.value, "params.yaml") == f"studies.{name}.accuracy_every"


@pytest.mark.parametrize(("steps", "said"), [(57.25, "57.25"), (12345.4, "12,345")])
def test_steps_have_no_power_of_ten(steps: float, said: str) -> None:
    setting = {"model": "resnet18", "batch_size": 32, "learning_rate": 0.1, "weight_decay": 0.0}
    row = {"setting": setting, "arm": "full", "steps": steps, "images": 32 * steps, "reached": 2, "n": 2, "at_once": 0}
    found = {"quantity": "train_loss", "target": 1.0, "arms": [row], "ratios": []}
    (section,) = convergence_sections({"convergence": [found], "varying": (), "plan": {"alpha": 0.05}})
    assert section["table"].rows[0][2] == said
