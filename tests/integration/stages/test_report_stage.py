import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.files import read_json, write_json
from pipeline.paths import DataPaths
from pipeline.reporting import figures as reporting_figures
from pipeline.stages.harness import run_stage
from pipeline.stages.report import report
from tests.fixtures.forked import run_forked
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.progress import progress_of, show_every_update
from tests.fixtures.report import ROOT, default_outcome, params_tree, params_with, write_artifacts, write_study
from tests.fixtures.unsaved_figures import figures_unsaved
from tests.unit.artifacts.test_resources import DAMAGED


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml and all artifacts before the report; it is the working folder."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_inputs(folder: Path) -> None:
    YAML().dump(params_tree(), folder / "params.yaml")
    write_artifacts(DataPaths(root=folder / "data"), params_with())


def run() -> None:
    run_stage("report", report, argv=[])


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after a report; tests read it."""
    folder = tmp_path_factory.mktemp("reported")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patches:
        patches.chdir(folder)
        run()
    return folder


def test_figures_too_large_for_the_memory_name_the_setting(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(reporting_figures, "dropped_images", fail)
    monkeypatch.setattr(reporting_figures, "figure_files", lambda *_: [])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code not in (None, 0)
    assert printed_error(capsys.readouterr().err).key == "report.gallery_images"


def test_it_writes_page_summary_and_figures(reported: Path) -> None:
    figures = ["digits.accuracy.svg", "digits.differences.svg", "digits.learning.svg"]
    figures += ["filter.classes.svg"]
    figures += [
        f"{net}.{kind}.png"
        for net in ("resnet18", "resnet34")
        for kind in ("class-noise", "dropped", "test-map", "train-map")
    ]
    others = [
        "report.html",
        "report.md",
        "summary.json",
        "metrics.json",
        "provenance.json",
        "costs.html",
        "resources.json",
    ]
    assert sorted(digests(reported / "data/report")) == sorted([*others, *(f"figures/{name}" for name in figures)])


@pytest.mark.slow
def test_figures_of_timm_networks_replace_earlier_ones_in_a_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, name = DataPaths(root=project / "data"), "timm/x.train-map.png"
    monkeypatch.setattr("pipeline.stages.report.reporting_figures.figure_files", lambda *_: iter([(name, b"new")]))
    for old in ("a.svg", "timm/y.train-map.png"):
        (data.figures / old).parent.mkdir(parents=True, exist_ok=True)
        (data.figures / old).write_bytes(b"old")
    run()
    assert list(digests(data.figures)) == [name]
    assert f"figures/{name}" in read_json(data.provenance("report"))["outputs"]


def test_the_provenance_has_the_margin(reported: Path) -> None:
    """`python -m pipeline compare` reads the margin there."""
    recorded = read_json(DataPaths(root=reported / "data").provenance("report"))
    assert recorded["parameters"]["report"]["margin"] == params_with().report.margin


@pytest.mark.slow
def test_equal_inputs_give_equal_bytes_of_what_dvc_tracks(
    reported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of renamed studies and old reports are not shown."""
    project = Path(shutil.copytree(reported, tmp_path / "project"))
    monkeypatch.chdir(project)
    first = digests(project / "data/report")
    write_study(DataPaths(root=project / "data"), params_with(), "digits", default_outcome)
    shutil.copy(project / "data/train/digits.parquet", project / "data/train/renamed.parquet")
    (project / "data/report/figures/renamed.accuracy.svg").write_text("<svg/>")
    run()
    assert digests(project / "data/report") == first
    write_json(project / ".work/resources/extract@resnet18.json", {"wall_s": 2.5, "peak_memory_mb": 9})
    run()
    second = digests(project / "data/report")
    assert {name for name in first if first[name] != second[name]} == {"costs.html", "resources.json"}
    assert json.loads((project / "data/report/resources.json").read_text()) == {
        "extract@resnet18": {"wall_s": 2.5, "peak_memory_mb": 9}
    }


def test_damaged_records_of_resources_are_left_out_of_the_costs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"wall_s": 2.5, "peak_memory_mb": 9}
    records = project / ".work/resources"
    names = ("prepare", "extract@resnet18", "reduce@resnet18", "filter@resnet18", "train@digits")
    for name, text in zip(names, DAMAGED, strict=True):
        write_json(records / f"{name}.json", whole)
        (records / f"{name}.json").write_text(text)
    write_json(records / "extract@resnet34.json", whole)
    run()
    assert read_json(project / "data/report/resources.json") == {"extract@resnet34": whole}
    assert capsys.readouterr().err.count("left out of the costs") == len(DAMAGED)


def test_a_missing_file_is_one_line_and_exit_code_2(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "data/reduce/resnet34.test.parquet").unlink()
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert printed_error(stderr).key == "data/reduce/resnet34.test.parquet"
    assert not (project / "data/report").exists()


@pytest.mark.slow
def test_dvc_repeats_nothing_and_shows_metrics_and_plots_offline(project: Path) -> None:
    """The stage is the one of dvc.yaml; one stage before it makes all artifacts of the others."""

    def dvc(*arguments: str) -> str:
        # Nothing listens at this address: any network request fails.
        nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environ = os.environ | nowhere | {"PATH": path, "PYTHONPATH": str(project)}
        done = run_forked([sys.executable, "-m", "dvc", *arguments], cwd=project, environ=environ, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        # DVC warns in each comparison about a metric that a revision lacks.
        assert "failed to load" not in done.stderr
        return done.stdout

    made = [path.relative_to(project).as_posix() for path in sorted((project / "data").rglob("*")) if path.is_file()]
    shutil.rmtree(project / "data")
    (project / "data").mkdir()
    (project / "make_inputs.py").write_text(
        "from tests.fixtures.report import *\nfrom pipeline.config.params import load_params\n"
        "write_artifacts(DataPaths(), load_params())\n"
    )
    tree = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")
    stage = tree["stages"]["report"]
    stage["deps"] = [path for path in stage["deps"] if path.startswith("data/")]
    maker = {"cmd": "python -m make_inputs", "params": ["studies"], "outs": made}
    declared = {key: part for key, part in tree.items() if key != "stages"}
    YAML().dump({"stages": {"all": maker, "report": stage}, **declared}, project / "dvc.yaml")
    subprocess.run(["git", "init", "--quiet"], check=True)
    dvc("init", "--quiet")
    for name in ("config", "plots.html"):
        shutil.copy(ROOT / ".dvc" / name, project / ".dvc" / name)
    for name in (".dvcignore", "data/.gitignore"):
        shutil.copy(ROOT / name, project / name)

    dvc("repro")
    assert json.loads(dvc("status", "--json")) == {}
    for name in ("costs.html", "resources.json"):
        (project / "data/report" / name).unlink()
    assert json.loads(dvc("status", "--json")) == {}
    commit = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message", "first"]
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(commit, check=True)

    YAML().dump(params_tree(seeds=[3, 4]), project / "params.yaml")
    dvc("repro")
    assert "kept.resnet18" in dvc("metrics", "show")
    assert "digits.vs_random" in dvc("metrics", "diff")
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run([*commit[:-1], "second"], check=True)
    changes = dvc("metrics", "diff", "HEAD~1", "HEAD").splitlines()
    (change,) = (line for line in changes if "digits.vs_random" in line)
    first, second, difference = (float(value) for value in change.split()[-3:])
    assert difference == pytest.approx(second - first, abs=1e-5)
    assert difference != 0
    dvc("plots", "diff", "HEAD~1", "HEAD")
    shown = (project / "dvc_plots/index.html").read_text()
    assert shown.count('digits.accuracy.svg">') == 2
    assert "<script" not in shown
    assert "http" not in shown
    before, after = sorted(project.glob("dvc_plots/static/*digits.accuracy.svg"))
    assert before.read_bytes() != after.read_bytes()


@pytest.mark.slow
def test_the_figures_of_each_study_and_network_count(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One study and two networks, as files and for the page."""
    show_every_update(monkeypatch)
    with figures_unsaved():
        run()
    shown = progress_of(capsys.readouterr().err)
    assert shown == {"report": [(done, 6, "sets of figures") for done in range(1, 7)]}
