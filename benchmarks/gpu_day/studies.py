"""The step that trains studies of a project, from its plan and into its ledger, until its time is over."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.gpu_day.running import CONTINUES, Cases, Row
from benchmarks.unpacking import unpack
from pipeline.artifacts.files import atomic_path
from pipeline.runs.record import CHECKSUMS

_ROOT = Path(__file__).parents[2]
_NEEDED = ("ruamel", "sklearn", "timm", "pynvml")
LEDGER = "ledger.tar.xz"
"""Finished runs and plans, without weights: `runs import` takes the folder that it unpacks to."""
_SECONDS_TO_SAVE = 30.0

_TINY_PARAMS = """
prepare: {dataset: image_folder, path: images, image_size: 8, seed: 0}
networks: [resnet18]
finetune: {weights: none, batch_size: 8, learning_rate: 0.02, budget: {steps: 1}, seed: 0}
extract: {batch_size: 8}
reduce: {n_neighbors: 5}
filter: {scorer: {name: dbscan, space: embedding, min_samples: 5}, drop_fraction: 0.05}
train: {workers: 1}
studies:
  tiny:
    filter_network: resnet18
    needs: prepare
    models: [small_cnn]
    arms: [full]
    batch_sizes: [8]
    learning_rates: [0.02]
    weight_decays: [5e-4]
    seeds: [0, 1]
    budget: {steps: 2}
report: {margin: 0.5, primary: random}
"""


def studies(
    *, dry_run: bool, project: str = "", names: Sequence[str] = (), out: str = "", seconds: float = 400
) -> Cases:
    """Return cases that train one study each, in order; a dry run makes a project of its own.

    Args:
        project: folder with params.yaml, and the images or data/prepare; data/filter for studies that need a filter.
        out: folder of the ledger's archive.
        seconds: of all cases; a study that is not complete by then saves its run and ends.
    """
    end = time.monotonic() + seconds
    if not dry_run:
        return {name: partial(train_until, Path(project), name, end, Path(out)) for name in names}
    return {"tiny": partial(_train_tiny, end, Path(out) if out else None)}


def _train_tiny(end: float, out: Path | None) -> Row:
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        write_tiny_project(project)
        return train_until(project, "tiny", end, out or project)


def write_tiny_project(project: Path) -> None:
    """Write images of two classes and params.yaml."""
    rng = np.random.default_rng(0)
    for split, n in (("train", 24), ("test", 8)):
        for row in range(n):
            path = project / "images" / split / "ab"[row % 2] / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    (project / "params.yaml").write_text(_TINY_PARAMS)


def train_until(project: Path, study: str, end: float, out: Path) -> Row:
    """Train a study until `end`, seconds of the monotonic clock, and pack what the project's ledger has."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        return {"skipped": f"{', '.join(missing)} not installed"}
    start, ledger, cells = time.monotonic(), out / LEDGER, project / ".work/cells"
    if end - start < _SECONDS_TO_SAVE:
        return {CONTINUES: True}
    if ledger.exists() and not cells.exists():
        # Of the machine before this one.
        unpack(ledger, project / ".work")
    try:
        prepared = (project / "data/prepare/metrics.json").exists()
        code = os.EX_OK if prepared else _run_stage(project, ["prepare"], end)
        if code == os.EX_OK:
            code = _run_stage(project, ["train", "--study", study], end)
    finally:
        _pack_ledger(project / ".work", ledger)
    return {
        CONTINUES: code != os.EX_OK or None,
        "exit_code": code,
        "finished_runs": len([*cells.glob("*/result.json")]),
        "train_s": round(time.monotonic() - start, 1),
        "ledger_mib": round(ledger.stat().st_size / 2**20, 2),
    }


def _run_stage(project: Path, arguments: Sequence[str], end: float) -> int:
    """Run a stage in the project; SIGTERM, which saves, ends one that takes longer. Raise its error."""
    # Packages that are missing on a lent machine may be in a folder of PYTHONPATH.
    folders = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-m", f"pipeline.stages.{arguments[0]}", *arguments[1:]]
    process = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True)
    stopped = False
    try:
        _, errors = process.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        stopped = True
        process.send_signal(signal.SIGTERM)
        try:
            _, errors = process.communicate(timeout=_SECONDS_TO_SAVE)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
    # A stage that has not begun to train is ended by the signal itself.
    if stopped and process.returncode in (-signal.SIGTERM, -signal.SIGKILL):
        return os.EX_TEMPFAIL
    if process.returncode not in (os.EX_OK, os.EX_TEMPFAIL):
        raise RuntimeError(f"{arguments[0]} ended with exit code {process.returncode}: {errors[-400:]}")
    return process.returncode


def _pack_ledger(work: Path, target: Path) -> None:
    """Write the finished runs and the plans, as if no run had kept its weights: they are too large."""
    files = sorted(path for path in (work / "cells").rglob("*") if path.is_file())
    with atomic_path(target) as temporary, tarfile.open(temporary, "w:xz") as archive:
        for path in files:
            if path.suffix == ".pt" or ".tmp" in path.name:
                continue
            content = path.read_bytes()
            if path.name == CHECKSUMS:
                digests = {name: value for name, value in json.loads(content).items() if name != "weights.pt"}
                content = json.dumps(digests).encode()
            entry = tarfile.TarInfo(path.relative_to(work).as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
