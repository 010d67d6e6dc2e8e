"""`filter-features --embedding` and `--images`: the visualizer opens what was filtered, and decisions come back."""

import hashlib
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from pipeline.__main__ import main
from pipeline.artifacts.overrides import Override, read_overrides, write_overrides
from pipeline.artifacts.tables import read_csv, read_parquet, write_csv
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.images import encode
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import class_blobs, write_params
from viz.commands.export import main as export
from viz.data import Source
from viz.filter_settings import FilterSettings, preview_filter

_N = 60
_NAMES = ["cat", "dog", "yak"]
_NETWORK = "timm/vit_small_patch14_dinov2"


@dataclass(frozen=True, kw_only=True)
class _Case:
    """Files of three blobs, where every 20th row has another label; the picture of a row has its number as color."""

    folder: Path
    planted: set[int]
    command: list[str]

    @property
    def project(self) -> Path:
        return self.folder / "out/viz"

    @property
    def shown(self) -> Source:
        return Source(DataPaths(root=self.project / "data"))


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Case:
    monkeypatch.chdir(tmp_path)
    features, labels = class_blobs(np.random.default_rng(0), n_classes=3, per_class=_N // 3, dimensions=8)
    np.save("f.npy", features)
    tsne = {"perplexity": 10.0, "early_exaggeration_iter": 20, "n_iter": 20, "n_jobs": 1}
    write_params(tmp_path, reduce={"pca": {"n_components": 5}, "tsne": tsne})
    planted = set(range(0, _N, 20))
    rows = [
        {"path": f"{row % 7}/{row}.png", "label": _NAMES[(label + (row in planted)) % 3]}
        for row, label in enumerate(labels.tolist())
    ]
    write_csv(tmp_path / "y.csv", pa.Table.from_pylist(rows))
    for number, row in enumerate(rows):
        file = tmp_path / "photos" / row["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(Image.new("RGB", (300, 150) if number else (9, 7), (number, 0, 255 - number))))
    options = ["--features", "f.npy", "--labels", "y.csv", "--scorer", "knn_agreement", "--drop-fraction", "0.05"]
    return _Case(folder=tmp_path, planted=planted, command=["filter-features", *options, "--out", "out"])


def _with_images(case: _Case, images: str = "photos") -> list[str]:
    return [*case.command, "--images", images, "--network", _NETWORK]


def test_the_visualizer_shows_the_rows_with_their_pictures(case: _Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(case.command) == 0
    without = read_parquet(case.folder / "out/points.parquet")
    assert main(_with_images(case)) == 0
    with_images = read_parquet(case.folder / "out/points.parquet")
    # Pictures change no decision.
    for column in ("keep", "score", "eps"):
        assert with_images[column].equals(without[column])
    assert load_params(case.project / "params.yaml").networks == (_NETWORK,)
    points = case.shown.points(_NETWORK)
    assert set(np.flatnonzero(~points.kept)) == case.planted
    assert points.paths.to_pylist()[:2] == ["0/0.png", "1/1.png"]
    assert points.images.shape == (_N, 96, 96, 3)
    assert points.images[:, 50, 50].tolist() == [[row, 0, 255 - row] for row in range(_N)]
    # The suggested label is another one, as a linear probe predicts out of fold.
    assert {row for row in case.planted if points.predicted[row] != points.labels[row]} == case.planted
    # The filter's settings can be changed there.
    preview = preview_filter(case.shown, points, FilterSettings())
    np.testing.assert_array_equal(preview.keep, points.kept)
    assert case.shown.scorer_inputs(points).probabilities is not None
    # The printed commands open it.
    *_, view, page = capsys.readouterr().out.splitlines()
    options = ["--params", "out/viz/params.yaml", "--data", "out/viz/data"]
    assert view.split()[-5:] == ["viz", *options]
    assert page.split()[-6:] == ["export", "suspects.html", *options]
    assert export(page.split()[-5:]) == 0
    assert (case.folder / "suspects.html").is_file()


def test_decisions_of_the_visualizer_are_applied_and_stay(case: _Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_with_images(case)) == 0
    file = case.shown.data.overrides
    digest = hashlib.sha256((case.folder / "photos/3/3.png").read_bytes()).hexdigest()
    decided = Override(path="3/3.png", sha256=digest, decision="drop", note="blurred", timestamp="", line=2)
    write_overrides(file, [decided])
    for _ in range(2):
        assert main(_with_images(case)) == 0
        assert [override.path for override in read_overrides(file)] == ["3/3.png"]
        assert not case.shown.points(_NETWORK).kept[3]
    # A second file of decisions would replace the first.
    write_overrides(case.folder / "mine.csv", [])
    capsys.readouterr()
    assert main([*_with_images(case), "--overrides", "mine.csv"]) == 2
    assert printed_error(capsys.readouterr().err).key == "--overrides mine.csv"
    assert [override.path for override in read_overrides(file)] == ["3/3.png"]


def test_decisions_are_applied_without_the_map_too(case: _Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*case.command, "--embedding"]) == 0
    file = case.shown.data.overrides
    (network,) = load_params(case.project / "params.yaml").networks
    shown = case.shown.points(network)
    row = min(case.planted)
    path, of_features = shown.paths[row].as_py(), shown.sha256[row].as_py()
    kept = Override(path=path, sha256=of_features, decision="keep", note="is right", timestamp="", line=2)
    write_overrides(file, [kept])
    capsys.readouterr()
    # Without hashes in the labels, only the map has the names of the decisions.
    assert main(case.command) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "out/viz/data/overrides.csv"
    assert "--embedding" in str(error)
    labels = read_csv(Path("y.csv"), {"path": pa.string(), "label": pa.string()})
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in labels["path"].to_pylist()]
    write_csv(Path("y.csv"), labels.append_column("sha256", pa.array(digests)))
    write_overrides(file, [replace(kept, sha256=digests[row])])
    for more in (["--embedding"], []):
        assert main([*case.command, *more]) == 0
        decided = {override.path: override.decision for override in read_overrides(Path("out/overrides.csv"))}
        assert decided[path] == "keep"
    write_overrides(case.folder / "mine.csv", [])
    assert main([*case.command, "--overrides", "mine.csv"]) == 2


def test_given_decisions_come_into_the_project(case: _Case) -> None:
    digest = hashlib.sha256((case.folder / "photos/4/4.png").read_bytes()).hexdigest()
    decided = Override(path="4/4.png", sha256=digest, decision="drop", note="", timestamp="", line=2)
    write_overrides(case.folder / "mine.csv", [decided])
    assert main([*_with_images(case), "--overrides", "mine.csv"]) == 0
    assert [override.path for override in read_overrides(case.shown.data.overrides)] == ["4/4.png"]
    assert not case.shown.points(_NETWORK).kept[4]


def test_pixels_need_neither_labels_nor_paths(case: _Case) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (_N, 8, 6, 3), dtype=np.uint8)
    np.save("x.npy", pixels)
    command = [*_with_images(case, "x.npy"), "--scorer", "knn_distance"]
    at = command.index("--labels")
    assert main(command[:at] + command[at + 2 :]) == 0
    points = case.shown.points(_NETWORK)
    np.testing.assert_array_equal(points.images, pixels)
    assert points.paths.to_pylist() == [str(row) for row in range(_N)]
    assert points.class_names == ("all",)
    assert case.shown.scorer_inputs(points).probabilities is not None


def test_large_pixels_are_scaled(case: _Case) -> None:
    np.save("x.npy", np.full((_N, 200, 100, 3), 7, dtype=np.uint8))
    assert main(_with_images(case, "x.npy")) == 0
    images = case.shown.points(_NETWORK).images
    assert (images.shape, set(np.unique(images))) == ((_N, 96, 96, 3), {7})


def _absent(folder: Path) -> None:
    (folder / "photos/1/1.png").unlink()


def _damaged(folder: Path) -> None:
    (folder / "photos/1/1.png").write_bytes(b"no image")


def _outside(folder: Path) -> None:
    text = (folder / "y.csv").read_text().replace("1/1.png", "../f.npy", 1)
    (folder / "y.csv").write_text(text)


def _twice(folder: Path) -> None:
    text = (folder / "y.csv").read_text().replace("1/1.png", "0/0.png", 1)
    (folder / "y.csv").write_text(text)


def _without_paths(folder: Path) -> None:
    lines = (folder / "y.csv").read_text().splitlines()
    (folder / "y.csv").write_text("\n".join(line.split(",")[1] for line in lines) + "\n")


def _another_hash(folder: Path) -> None:
    lines = (folder / "y.csv").read_text().splitlines()
    digests = [hashlib.sha256(str(row).encode()).hexdigest() for row in range(_N)]
    pairs = zip(lines, ["sha256", *digests], strict=True)
    (folder / "y.csv").write_text("\n".join(",".join(pair) for pair in pairs) + "\n")


@pytest.mark.parametrize(
    ("spoil", "key", "named"),
    [
        (_absent, "--images photos", "1/1.png: no such file"),
        (_damaged, "--images photos", "1/1.png: not an image"),
        (_outside, "--images photos", "../f.npy"),
        (_twice, "--labels", "'0/0.png'"),
        (_without_paths, "--images photos", "path"),
        (_another_hash, "--images photos", "0/0.png"),
    ],
)
def test_pictures_that_are_not_those_of_the_rows(
    spoil: object, key: str, named: str, case: _Case, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(spoil)
    spoil(case.folder)
    assert main(_with_images(case)) == 2
    error = printed_error(capsys.readouterr().err.splitlines()[-1])
    assert error.key == key
    assert named in str(error)
    # Before the embedding, and before anything is written.
    assert not (case.folder / "out").exists()


def test_without_pictures_the_visualizer_opens_the_map(case: _Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*case.command, "--embedding"]) == 0
    (network,) = load_params(case.project / "params.yaml").networks
    points = case.shown.points(network)
    assert set(np.flatnonzero(~points.kept)) == case.planted
    assert points.paths.to_pylist()[:2] == ["0/0.png", "1/1.png"]
    *_, page = capsys.readouterr().out.splitlines()
    assert export(page.split()[-5:]) == 0
    decided = Override(path="3/3.png", sha256=points.sha256[3].as_py(), decision="drop", note="", timestamp="", line=2)
    write_overrides(case.shown.data.overrides, [decided])
    assert main([*case.command, "--embedding"]) == 0
    assert not case.shown.points(network).kept[3]
    # The hashes are of features, and name no image.
    assert "sha256" not in read_parquet(case.folder / "out/points.parquet").column_names
    assert not (case.folder / "out/overrides.csv").exists()


@pytest.mark.parametrize("spoil", ["no labels", "a path twice"])
def test_rows_without_names_are_shown_by_their_numbers(spoil: str, case: _Case) -> None:
    command = [*case.command, "--scorer", "knn_distance", "--embedding"]
    if spoil == "no labels":
        at = command.index("--labels")
        command = command[:at] + command[at + 2 :]
    else:
        _twice(case.folder)
    assert main(command) == 0
    (network,) = load_params(case.project / "params.yaml").networks
    assert case.shown.points(network).paths.to_pylist() == [str(row) for row in range(_N)]


def test_images_need_no_name_of_a_network(case: _Case) -> None:
    assert main([*case.command, "--images", "photos"]) == 0
    (network,) = load_params(case.project / "params.yaml").networks
    assert case.shown.points(network).images.shape == (_N, 96, 96, 3)


def test_a_name_without_a_project_is_refused(case: _Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*case.command, "--network", _NETWORK]) == 2
    assert printed_error(capsys.readouterr().err).key == "--network"
    assert not (case.folder / "out").exists()


def test_printed_commands_open_folders_with_spaces(case: _Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*case.command, "--out", "my out", "--embedding"]) == 0
    *_, page = capsys.readouterr().out.splitlines()
    assert export(shlex.split(page)[-5:]) == 0


@pytest.mark.parametrize(
    "images", ["nowhere", "nowhere.npy", "y.csv", "wide.npy", "short.npy", "floats.npy", "text.npy", "flat.npy"]
)
def test_other_files(images: str, case: _Case, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("wide.npy", np.zeros((_N, 4, 4, 4), dtype=np.uint8))
    np.save("floats.npy", np.zeros((_N, 4, 4, 3)))
    np.save("flat.npy", np.zeros((_N, 4), dtype=np.uint8))
    Path("text.npy").write_text("no array")
    np.save("short.npy", np.zeros((_N - 1, 4, 4, 3), dtype=np.uint8))
    assert main(_with_images(case, images)) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == f"--images {images}"
    assert "delete" not in str(error)
