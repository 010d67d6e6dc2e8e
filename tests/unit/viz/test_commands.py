import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.paths import DataPaths
from tests.fixtures.content_policy import policy_sources
from tests.fixtures.points import CLASS_NAMES, write_points
from tests.fixtures.projects import NETWORK, ROOT
from tests.fixtures.records import record
from tests.fixtures.slow import quick_first
from viz.__main__ import main
from viz.commands import figure as figure_command
from viz.commands.serve import page_url

_PARAMS = ["--params", str(ROOT / "tests" / "params.yaml")]


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Options for the data folder and the parameters."""
    paths = DataPaths(root=tmp_path / "data")
    write_points(paths, np.zeros((40, 8, 8, 3), dtype=np.uint8), labels=np.arange(40) % len(CLASS_NAMES))
    record(paths, "prepare")
    record(paths, "filter", NETWORK)
    return ["--data", str(paths.root), *_PARAMS]


def test_export_writes_the_same_page_twice(data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "map.html"
    assert main(["export", str(file), *data]) == 0
    assert re.search(r"map\.html: written, \d\.\d MB\n", capsys.readouterr().out)
    first = file.read_bytes()
    assert main(["export", str(file), *data]) == 0
    assert file.read_bytes() == first
    assert list(file.parent.iterdir()) == [file]


def test_no_name_ends_an_element_of_the_page(data: list[str], tmp_path: Path) -> None:
    main(["export", str(tmp_path / "map.html"), *data])
    page = (tmp_path / "map.html").read_text()
    assert "alert(1)</script>" not in page
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>")
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy_sources(policy)["default-src"] == ["'none'"]


def test_the_exported_page_has_the_style_of_the_app(data: list[str], tmp_path: Path) -> None:
    main(["export", str(tmp_path / "map.html"), *data])
    page = (tmp_path / "map.html").read_text()
    assert (ROOT / "viz" / "assets" / "base.css").read_text() in page
    app = (ROOT / "viz" / "layout.py").read_text()
    for shared in ("choices", "middle", "images", "legend", "grid", "card", "theme"):
        assert f'id="{shared}"' in page
        assert f'id="{shared}"' in app


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]
)
@pytest.mark.parametrize("color", quick_first(1, ["class", "decision", "score"]))
def test_figure_writes_what_its_name_says(
    data: list[str], tmp_path: Path, suffix: str, magic: bytes, color: str
) -> None:
    file = tmp_path / f"map.{suffix}"
    assert main(["figure", str(file), "--color", color, *data]) == 0
    first = file.read_bytes()
    assert first.startswith(magic)
    assert main(["figure", str(file), "--color", color, *data]) == 0
    assert file.read_bytes() == first


def test_a_figure_has_a_title_and_the_class_names(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []

    def record(figure: Figure) -> bytes:
        axes = figure.axes[0]
        texts.extend([axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)])
        return b""

    monkeypatch.setattr(figure_command, "_FORMATS", {".png": record})
    main(["figure", str(tmp_path / "map.png"), "--color", "decision", *data])
    assert texts == ["resnet18: decision; 6 of 40 training images dropped", *CLASS_NAMES]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["figure", "map.gif"], "map.gif: its name must end in .png or .svg or .pdf"),
        (["figure", "map"], "map: its name must end in"),
        (["export", "points.parquet"], "points.parquet: its name must end in .html or .htm"),
        (["figure", "map.png", "--color", "mood"], "--color: 'mood' is not known; choose from decision, class"),
        (["export", "map.html", "--network", "resnet34"], "--network: 'resnet34' is not in"),
        (["export", "map.html", "--data", "nowhere"], "points.parquet: missing; run `dvc repro`"),
        (["figure", "map.png", "--data", "nowhere"], "points.parquet: missing; run `dvc repro`"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, *_PARAMS]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["export", "map.html"], ["figure", "map.svg"]])
def test_a_folder_in_the_way_is_one_line(
    command: list[str], data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / command[1]).mkdir()
    assert main([command[0], str(tmp_path / command[1]), *data]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert command[1] in line


def test_files_without_a_record_are_noted_once(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A folder of an earlier test may have had the same path.
    monkeypatch.setattr("pipeline.artifacts.recorded._noted", set())
    DataPaths(root=tmp_path / "data").provenance("filter", NETWORK).unlink()
    for suffix in ("svg", "png"):
        assert main(["figure", str(tmp_path / f"map.{suffix}"), *data]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{tmp_path / 'data'}: no provenance.json of filter@{NETWORK}: their files were not checked"


def test_memory_that_runs_out_is_one_line(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> object:
        return np.empty(2**62, dtype=np.uint8)

    monkeypatch.setattr("viz.commands.figure.colored_map", failing)
    assert main(["figure", str(tmp_path / "map.svg"), *data]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: out of memory (")


@pytest.mark.parametrize("command", [["export", "map.html"], ["figure", "map.png"]])
def test_a_full_disk_leaves_the_old_file(
    command: list[str], data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Path("/dev/full")
    if not device.exists():
        pytest.skip("needs /dev/full")
    file = tmp_path / command[1]
    file.write_text("old")
    # Write to a device that is always full.
    (tmp_path / f".{command[1]}.{os.getpid()}.tmp").symlink_to(device)
    assert main([command[0], str(file), *data]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}: {os.strerror(errno.ENOSPC)}; ")
    assert error.count("\n") == 1
    assert file.read_text() == "old"


@pytest.mark.parametrize(
    ("host", "name"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("0.0.0.0", None), ("::", None)]
)
def test_the_printed_url_can_be_opened(host: str, name: str | None) -> None:
    name = name or socket.gethostname()
    assert page_url(host, 8050, None) == f"http://{name}:8050/"
    assert page_url(host, 8050, "a-b") == f"http://{name}:8050/?token=a-b"
    assert urlsplit(page_url(host, 8050, None)).port == 8050


@pytest.mark.slow
def test_exports_need_no_server() -> None:
    script = (
        "import sys, viz.__main__, viz.commands.export, viz.commands.figure\n"
        "print(sorted({'dash', 'flask', 'torch'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
