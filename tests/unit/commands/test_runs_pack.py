"""The packed inputs of a report give the same report to someone who has the images."""

import shutil
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from benchmarks.unpacking import unpack
from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.plans import register_plan, write_run_dates
from pipeline.artifacts.recorded import check_recorded
from pipeline.artifacts.stage_inputs import report_inputs
from pipeline.commands.compare.experiments import read_experiment
from pipeline.config.params import load_params
from pipeline.config.study_plan import build_plan
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reporting.inputs import report_input_files
from pipeline.stages.harness import run_stage
from pipeline.stages.report import report
from tests.fixtures.damages import KINDS, damage
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.records import record
from tests.fixtures.report import params_tree, params_with, write_artifacts
from tests.fixtures.source_tree import ROOT

_PACKED = sorted(ROOT.glob("docs/results/*/*/results.tar.xz"))
_TEXT = {"question": "Does it help?", "hypotheses": ["It does."], "rate_selection": "On val."}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a report; the stages before it are made up."""
    folder = tmp_path_factory.mktemp("project")
    params = params_with(plan=_TEXT)
    write_artifacts(DataPaths(root=folder / "data"), params)
    YAML().dump(params_tree(plan=_TEXT), folder / "params.yaml")
    plans, plan = (
        WorkPaths(root=folder / ".work").plans("digits"),
        build_plan("digits", params.studies["digits"], params.train, params.report),
    )
    register_plan(plans, plan, datetime(2026, 11, 23, tzinfo=UTC))
    write_run_dates(plans, {"digits-0": "2026-11-24T00:00:00.000000Z"})
    write_json(folder / ".work/resources/extract@resnet18.json", {"wall_s": 2.5, "peak_memory_mb": 9})
    _report(folder)
    return folder


def _places(folder: Path) -> list[str]:
    return [f"--params={folder / 'params.yaml'}", f"--data={folder / 'data'}", f"--work={folder / '.work'}"]


def _report(folder: Path) -> None:
    run_stage("report", report, argv=_places(folder))


def _pack(folder: Path, file: Path) -> int:
    return main(["runs", "pack", str(file), *_places(folder)])


@pytest.mark.slow
def test_it_gives_the_report_again(project: Path, tmp_path: Path) -> None:
    packed, other = tmp_path / "results.tar.xz", tmp_path / "other"
    assert _pack(project, packed) == 0
    other.mkdir()
    subprocess.run(["tar", "xf", packed, "-C", other], check=True)
    # As `prepare` makes them from the same images.
    shutil.copytree(project / "data" / "prepare", other / "data" / "prepare")
    _report(other)
    for name in ("summary.json", "report.html", "report.md"):
        assert (other / "data/report" / name).read_bytes() == (project / "data/report" / name).read_bytes()
    assert "2026-11-23" in (other / "data/report/report.md").read_text()


@pytest.mark.slow
def test_packed_twice_it_has_the_same_bytes_and_no_images(project: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.tar.xz", tmp_path / "b.tar.xz"]
    assert [_pack(project, file) for file in files] == [0, 0]
    assert files[0].read_bytes() == files[1].read_bytes()
    with tarfile.open(files[0]) as archive:
        assert not [name for name in archive.getnames() if "prepare/" in name or name.endswith(".pt")]


def test_a_damaged_record_of_resources_is_not_packed(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run_log._LINE_INTERVAL_S", 0.0)
    record, packed = project / ".work/resources/prepare.json", tmp_path / "results.tar.xz"
    record.write_text("[]")
    assert _pack(project, packed) == 0
    record.unlink()
    errors = capsys.readouterr().err
    assert str(record) in errors
    with tarfile.open(packed) as archive:
        n_files = len(archive.getnames())
        assert f"runs pack: {n_files}/{n_files} files, " in errors
        names = [name for name in archive.getnames() if name.startswith(".work/resources/")]
    assert names == [".work/resources/extract@resnet18.json"]


@pytest.mark.parametrize("n_planted", [None, 4])
def test_a_note_says_that_labels_were_changed_on_purpose(
    n_planted: int | None, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, packed = tmp_path / "copy", tmp_path / "results.tar.xz"
    shutil.copytree(project, copy)
    data = DataPaths(root=copy / "data")
    write_json(data.prepare_metrics, {**read_json(data.prepare_metrics), "n_planted": n_planted})
    record(data, "prepare")
    assert _pack(copy, packed) == 0
    with tarfile.open(packed) as archive:
        names = archive.getnames()
        assert ("labels_changed_on_purpose.txt" in names) == (n_planted is not None)
        if n_planted is not None:
            note = archive.extractfile("labels_changed_on_purpose.txt")
            assert note is not None
            assert note.read() == b"labels changed on purpose: 4\n"
    printed = capsys.readouterr().out
    assert ("labels changed on purpose: 4\n" in printed) == (n_planted is not None)
    assert f": {len(names)} files" in printed


@pytest.mark.parametrize("packed", _PACKED, ids=lambda packed: packed.parent.name)
def test_an_earlier_archive_has_the_inputs_of_report_and_compare(packed: Path, tmp_path: Path) -> None:
    unpack(packed, tmp_path)
    params = load_params(tmp_path / "params.yaml", accept_old_keys=True)
    data = DataPaths(root=tmp_path / "data")
    assert [path for path in report_input_files(params, data) if not path.exists()] == []
    assert check_recorded(data, report_inputs(params, data)) == [], "it says which files it has in place of others"
    experiment = read_experiment(str(tmp_path))
    assert set(experiment.studies) == set(params.studies)
    assert set(experiment.filters) == set(params.networks)


@pytest.mark.parametrize(
    ("name", "lost", "key"),
    [
        ("results.zip", None, "results.zip"),
        ("results.tar.xz", "filter/resnet18/points.parquet", "copy/data/filter/resnet18/points.parquet"),
    ],
)
def test_errors_are_one_line(
    name: str, lost: str | None, key: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    if lost:
        (copy / "data" / lost).unlink()
    assert _pack(copy, tmp_path / name) == 2
    shown = capsys.readouterr().err
    assert printed_error(shown).key == str(tmp_path / key)
    assert shown.count("\n") == 1
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("a row less", "of another network")])
def test_damaged_metrics_of_a_filter_are_refused(
    kind: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, packed = tmp_path / "copy", tmp_path / "results.tar.xz"
    shutil.copytree(project, copy)
    path = DataPaths(root=copy / "data").filter_metrics("resnet18")
    assert damage(path, kind)
    assert _pack(copy, packed) == 2
    shown = capsys.readouterr().err
    assert printed_error(shown).key == str(path)
    assert shown.count("\n") == 1
    assert not packed.exists()
