"""`verify` on runs held against each other: two trainings share neither hash chain nor curve."""

from dataclasses import replace
from pathlib import Path

from pipeline.commands.verify.findings import Findings
from pipeline.commands.verify.recorded import read_project
from pipeline.commands.verify.runs import check_runs
from pipeline.paths import DataPaths, WorkPaths
from tests.fixtures.verified import write_verified_project


def test_one_step_has_one_loss_whatever_the_weight_decay(tmp_path: Path) -> None:
    """The rate is so small that the test loss after the step is equal, too; the hash chain tells the runs apart."""
    folder = write_verified_project(
        tmp_path, arms=["full"], seeds=[0], learning_rates=[1e-9], weight_decays=[0.5, 0.0], budget={"steps": 1}
    )
    findings = Findings()
    data, work = DataPaths(root=folder / "data"), WorkPaths(root=folder / ".work")
    project = read_project(folder / "params.yaml", data, work, findings)
    assert len({run.result.loss for run in project.runs.values()}) == 1 < len(project.runs)
    check_runs(project, findings)
    assert findings.differences == []


def test_arms_that_end_before_their_images_differ_are_one_training(tmp_path: Path) -> None:
    """The first four of 80 images are no dropped ones; after a whole epoch they could not be the same."""
    folder = write_verified_project(
        tmp_path, arms=["full", "filtered"], seeds=[0], batch_sizes=[4], budget={"steps": 1}, match="steps"
    )
    findings = Findings()
    data, work = DataPaths(root=folder / "data"), WorkPaths(root=folder / ".work")
    project = read_project(folder / "params.yaml", data, work, findings)
    assert len({run.result.links[-1].sha256 for run in project.runs.values()}) == 1 < len(project.runs)
    check_runs(project, findings)
    assert findings.differences == []
    whole_epochs = {
        name: replace(run, result=replace(run.result, history=tuple(replace(r, epoch=1.0) for r in run.result.history)))
        for name, run in project.runs.items()
    }
    check_runs(replace(project, runs=whole_epochs), findings)
    assert ["hash chain of run" in line for line in findings.differences] == [True]
