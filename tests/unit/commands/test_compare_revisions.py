"""`python -m pipeline compare` between revisions of a project with real Git and DVC."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.fixtures.damages import damage
from tests.fixtures.experiments import gains, run_rows, write_experiment
from tests.fixtures.printed_errors import printed_error

pytestmark = pytest.mark.slow

LATER = "\n      - data/train/later.parquet\n      - data/report/provenance.json"
DVC = [sys.executable, "-m", "dvc"]


def printed_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["compare", *arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits of a DVC project after an empty one, whose only stage copies one of two experiments to data/.

    Only the second has a report.
    """
    project = tmp_path_factory.mktemp("repository")
    first = write_experiment(project / "made/1", {"digits": run_rows()}, {"resnet18": ["a", "b"]})
    second = {"digits": run_rows(change=gains(lambda row: 0.001 * float(row["seed"]) - 0.002)), "later": run_rows()}
    write_experiment(project / "made/2", second, {"resnet18": ["a"]}, margin=0.25)
    files = sorted(path.relative_to(first).as_posix() for path in first.rglob("*") if path.is_file())
    outs = "".join(f"\n      - data/{name}" for name in files)
    for command in (["git", "init", "--quiet"], [*DVC, "init", "--quiet"]):
        run(project, command)
    (project / ".git/info/exclude").write_text("/made/\n")
    commit = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--all", "-m"]
    run(project, [*commit, "nothing yet"])
    for which, more in (("1", ""), ("2", LATER)):
        stage = f"stages:\n  all:\n    cmd: cp -r made/{which}/. data\n    outs:{outs}{more}\n"
        # Declared, and never run: it is in no dvc.lock.
        never = "  never:\n    cmd: 'true'\n    frozen: true\n    outs:\n      - data/train/never.parquet\n"
        if not more:
            never += "      - data/report/provenance.json\n"
        (project / "dvc.yaml").write_text(stage + never)
        (project / "data").mkdir(exist_ok=True)
        run(project, [*DVC, "repro", "--quiet", "all"])
        run(project, ["git", "add", "."])
        run(project, [*commit, which])
    return project


def run(project: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=project, check=True, capture_output=True, text=True, env=environment())
    return done.stdout


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}


def digests(project: Path) -> dict[str, str]:
    """All files of the user, and what git holds of the work tree; not what DVC remembers for itself."""
    files = [path for path in project.rglob("*") if path.is_file() and "tmp" not in path.parts]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_two_revisions_are_compared_without_a_checkout(repository: Path) -> None:
    before = digests(repository)
    shown = run(repository, [sys.executable, "-m", "pipeline", "compare", "HEAD~1", "HEAD", "--json"])
    assert digests(repository) == before
    result = json.loads(shown)
    assert (result["a"], result["b"]) == ("HEAD~1", "HEAD")
    assert [study["study"] for study in result["studies"]] == ["digits"]
    assert result["studies"][0]["pooled"][0]["estimate"]["mean"] == pytest.approx(-0.1)
    assert result["margin"] == {"points": 0.25, "stated": "report"}
    assert (result["studies_only_a"], result["studies_only_b"]) == ([], ["later"])
    assert [(row["share_a"], row["jaccard"]) for row in result["filters"]] == [(0.2, 0.5)]


def test_a_revision_with_missing_test_images_gets_no_verdict(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(repository, tmp_path / "copy")
    digest = hashlib.md5((copy / "data/prepare/test.parquet").read_bytes(), usedforsecurity=False).hexdigest()
    (copy / ".dvc/cache/files/md5" / digest[:2] / digest[2:]).unlink()
    monkeypatch.chdir(copy)
    (study,) = json.loads(printed_by(capsys, "HEAD~1", "HEAD", "--json"))["studies"]
    _, reasons = study["no_verdict"].split("of A, ")
    of_a, _ = reasons.split("of B, ")
    assert of_a.startswith("prepare/test.parquet ")


def test_damage_in_the_cache_of_dvc_is_named_with_the_revision(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(repository, tmp_path / "copy")
    digest = hashlib.md5((copy / "data/train/digits.parquet").read_bytes(), usedforsecurity=False).hexdigest()
    cached = copy / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
    cached.chmod(0o644)
    assert damage(cached, "bit in the middle")
    monkeypatch.chdir(copy)
    assert main(["compare", "HEAD~1", "HEAD"]) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "HEAD/data/train/digits.parquet"
    assert str(error).endswith("`python -m pipeline.stages.train --study digits` in a checkout of HEAD")


def test_a_revision_is_compared_with_the_folder_here(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    studies = json.loads(printed_by(capsys, "HEAD", ".", "--json"))["studies"]
    assert [(study["pairs"], study["pooled"]) for study in studies] == [(0, [])] * len(studies)
    assert all(study["same_runs"] for study in studies)


def test_unknown_revisions_and_missing_cache_entries_are_one_line(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    assert main(["compare", "HEAD", "nonsense"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: nonsense: ")
    assert line.count("\n") == 1
    assert main(["compare", "HEAD~2", "HEAD"]) == 2
    assert capsys.readouterr().err.startswith("error: HEAD~2: ")
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "HEAD", "HEAD"]) == 2
    assert capsys.readouterr().err.startswith("error: HEAD: ")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True)
    monkeypatch.chdir(clone)
    assert main(["compare", "HEAD~1", "HEAD"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: HEAD~1: data/")
    assert "dvc pull --all-commits" in line
    assert line.count("\n") == 1
