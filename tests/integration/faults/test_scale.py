"""Many images, many classes, many runs and many hours: every stage ends, and memory stays flat.

`make campaign-scale` sets IMAGES=200000 and CLASSES=1000, and SOAK=3600 seconds for each of two soaks.
"""

import io
import os
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.files import read_json
from pipeline.artifacts.overrides import write_overrides
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths, WorkPaths
from tests.fixtures.images import photo
from tests.fixtures.params import PRESET
from tests.fixtures.projects import NETWORK, folder_arguments, write_params
from tests.fixtures.report import params_tree, params_with, write_artifacts
from tests.fixtures.training import TINY_STUDY, run, stage, write_project
from tests.fixtures.view import view_data
from tests.unit.viz.test_app import body_of, page_values
from viz.app import make_app
from viz.data import Source

_IMAGES, _CLASSES = int(os.environ.get("IMAGES", "3000")), int(os.environ.get("CLASSES", "30"))
_SOAK_S = float(os.environ.get("SOAK", "15"))
_TIMEOUT_S = 4 * 3600
_MAX_GROWTH_MB = 30
"""Of a process between a fifth of a soak and its end: the allocator's slack, and no file or network more."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(_TIMEOUT_S)]


def _run(name: str, folder: Path, *item: str) -> float:
    """Run a stage in a separate process, and return its peak memory in MB."""
    # A fork would begin with the memory of what it shares.
    command = [sys.executable, "-m", f"pipeline.stages.{name}", *item, *folder_arguments(folder)]
    done = run(command, timeout=_TIMEOUT_S, fresh=True)
    assert done.returncode == 0, done.stderr
    record = WorkPaths(root=folder / "work").resources(f"{name}@{item[1]}" if item else name)
    return float(read_json(record)["peak_memory_mb"])


@pytest.mark.subprocess
def test_many_images_of_many_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "images.tar"
    per_class = _IMAGES // _CLASSES
    with tarfile.open(archive, "w") as file:
        for number in range(per_class * _CLASSES):
            content = photo(number)
            member = tarfile.TarInfo(f"class {number % _CLASSES:04d}/{number:06d}.png")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    short = {"schedule": {"name": "cosine"}, "threads_per_worker": 1}
    write_params(
        tmp_path,
        prepare={"dataset": "image_folder", "path": str(archive), "image_size": 16, "test_size": 0.2},
        finetune={**short, "batch_size": 64, "budget": {"steps": 2}},
        reduce={
            "pca": {"n_components": 8},
            "tsne": {"perplexity": 10.0, "early_exaggeration_iter": 20, "n_iter": 20, "n_jobs": 1},
            "n_neighbors": 10,
        },
        train=short,
        studies={
            "digits": None,
            "tiny": {**TINY_STUDY, "arms": ["full", "filtered"], "seeds": [0], "models": ["small_cnn"]},
        },
    )
    data = DataPaths(root=tmp_path / "data")
    write_overrides(data.overrides, [])
    peaks = {"prepare": _run("prepare", tmp_path)}
    peaks |= {name: _run(name, tmp_path, "--network", NETWORK) for name in ("finetune", "extract", "reduce", "filter")}
    peaks["train"] = _run("train", tmp_path, "--study", "tiny")
    peaks["report"] = _run("report", tmp_path)
    points = read_parquet(data.points(NETWORK), ["keep", "label"])
    assert len(points) == round(0.8 * per_class * _CLASSES)
    assert len(set(points["label"].to_pylist())) == _CLASSES
    assert 0 < points["keep"].to_pylist().count(False) < 0.1 * len(points)
    assert data.report_page.exists()
    with capsys.disabled():
        shown = ", ".join(f"{name} {peak:,.0f} MB" for name, peak in peaks.items())
        print(f"\n{_IMAGES:,} images of {_CLASSES:,} classes, peak memory: {shown}")


@pytest.mark.subprocess
def test_a_report_of_ten_thousand_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = {
        "batch_sizes": [16, 32, 64, 128],
        "learning_rates": [round(0.001 * 1.2**power, 6) for power in range(28)],
        "seeds": list(range(30)),
    }
    params = params_with([NETWORK], **grid)
    data = DataPaths(root=tmp_path / "data")
    write_artifacts(data, params)
    YAML().dump(params_tree([NETWORK], **grid), tmp_path / "params.yaml")
    peak = _run("report", tmp_path)
    n_runs, size = len(read_parquet(data.runs("digits"), ["seed"])), data.report_page.stat().st_size
    assert n_runs == 3 * 4 * 28 * 30
    assert size < 50e6
    assert peak < 4000
    with capsys.disabled():
        print(f"\n{n_runs:,} runs: page {size / 1e6:.1f} MB, peak memory {peak:,.0f} MB")


def _growth_mb(act: Callable[[int], None], *, warm_up: int) -> tuple[int, float]:
    """Repeat `act` for the time of a soak, and return how often, and the growth of this process's memory meanwhile.

    Args:
        warm_up: times to act before: the first ones fill caches, on a slow machine for longer than a soak.
    """
    for number in range(warm_up):
        act(number)
    start, count, before = time.monotonic(), warm_up, _memory_mb()
    while time.monotonic() - start < _SOAK_S:
        act(count)
        count += 1
    return count - warm_up, _memory_mb() - before


def _memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_a_soak_of_the_visualizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = view_data(tmp_path)
    client = make_app(Source(data), params_file=PRESET).server.test_client()
    values = page_values(client)

    def visit(number: int) -> None:
        assert client.get("/").status_code == 200
        assert client.get(f"/thumbnail/{number % 80}.png").status_code == 200
        body = body_of(client, "map-drawing.data", values, "network.value")
        assert client.post("/_dash-update-component", json=body).status_code == 200
        if number % 50 == 0:  # a stage has run again
            os.utime(data.points(NETWORK))

    count, growth = _growth_mb(visit, warm_up=120)
    with capsys.disabled():
        print(f"\nvisualizer: {count:,} visits in {_SOAK_S:g} s, memory {growth:+.1f} MB")
    assert growth < _MAX_GROWTH_MB


def test_a_soak_of_the_train_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(number: int) -> None:
        write_project(tmp_path, study={"models": ["small_cnn"], "arms": ["full"], "seeds": [number]})
        assert stage("train", tmp_path) == 0

    count, growth = _growth_mb(train, warm_up=2)
    with capsys.disabled():
        print(f"\ntrain: {count:,} studies in {_SOAK_S:g} s, memory {growth:+.1f} MB")
    assert growth < _MAX_GROWTH_MB
