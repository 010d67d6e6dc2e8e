"""Training on what three filters leave: parameters, shared files and the table."""

import sys
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML
from scipy import stats

from benchmarks.planted_filters import FILTERS, arm_accuracies, study_tree, table_rows
from pipeline.config.params import check_params
from pipeline.paths import DataPaths
from tests.fixtures.iteration import write_images
from tests.fixtures.source_tree import ROOT
from tests.fixtures.training import run

_PRESET = YAML(typ="safe", pure=True).load(ROOT / "presets/planted-noise.yaml")


def test_filters_differ_in_scorer_and_study_alone() -> None:
    trees = {name: study_tree(_PRESET, name, Path("images.tar")) for name in FILTERS}
    params = {name: check_params(tree, source=name) for name, tree in trees.items()}
    assert {name: tuple(made.studies) for name, made in params.items()} == {name: (name,) for name in FILTERS}
    studies = {name: made.studies[name] for name, made in params.items()}
    assert studies["label_odds"].arms == ("full", "filtered", "random", "relabeled")
    assert studies["dbscan"].arms == studies["truth"].arms == ("full", "filtered")
    shared = {str(made.model_copy(update={"studies": {}, "filter": None})) for made in params.values()}
    assert len(shared) == 1
    assert {made.filter.drop_fraction for made in params.values()} == {0.2}
    assert [made.filter.scorer.name for made in params.values()] == ["label_odds", "dbscan", "label_odds"]
    questions = {study.plan.question for study in studies.values() if study.plan}
    assert len(questions) == 3
    for study in studies.values():
        changed = study.model_copy(update={"arms": (), "plan": None, "relabel_above": None})
        assert changed == studies["truth"].model_copy(update={"arms": (), "plan": None})


def test_differences_are_paired_by_seed() -> None:
    rng = np.random.default_rng(0)
    full, filtered = (dict(enumerate(rng.normal(mean, 0.01, 6))) for mean in (0.5, 0.54))
    rows = list(table_rows({"truth": {"full": full, "filtered": filtered}}, {"truth": "0 of 8"}, 0.005))
    assert [(row["arm"], row["wrong_left"], row["n"]) for row in rows] == [("full", "", 6), ("filtered", "0 of 8", 6)]
    gains = 100 * (np.array([*filtered.values()]) - np.array([*full.values()]))
    low, high = stats.t.interval(0.95, 5, loc=gains.mean(), scale=stats.sem(gains))
    assert rows[1]["minus_full"] == f"{gains.mean():+.2f}"
    assert rows[1]["interval"] == f"{low:+.2f} to {high:+.2f}"
    assert rows[1]["verdict"] == "helps"
    assert rows[0]["top1"] == f"{100 * np.mean([*full.values()]):.2f} %"


# Without DBSCAN, whose stages take as long as those of the truth.
_OF_TWO_FILTERS = """
import sys
from benchmarks import planted_filters
planted_filters.FILTERS = {name: planted_filters.FILTERS[name] for name in ("label_odds", "truth")}
planted_filters.main(sys.argv[1:])
"""


def _printed(arguments: list[str]) -> str:
    done = run([sys.executable, "-c", _OF_TWO_FILTERS, *arguments], timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.subprocess
def test_filters_share_the_extractor_and_the_full_arm(tmp_path: Path) -> None:
    images, work = write_images(tmp_path / "images"), tmp_path / "work"
    tree = YAML(typ="safe", pure=True).load(ROOT / "presets/planted-noise.yaml")
    tree["prepare"] |= {"image_size": 16, "train_size": None}
    tree["finetune"] |= {"batch_size": 16, "budget": {"steps": 20}}
    tree["reduce"] |= {"pca": {"n_components": 10}, "n_neighbors": 5}
    tree["reduce"]["tsne"] |= {"perplexity": 10.0, "early_exaggeration_iter": 50, "n_iter": 50}
    study = tree["studies"]["label_odds"]
    study |= {"batch_sizes": [16], "seeds": [0, 1], "budget": {"steps": 5}}
    params = tmp_path / "small.yaml"
    YAML(typ="safe", pure=True).dump(tree, params)
    command = ["--images", str(images), "--params", str(params), "--work", str(work)]
    printed = _printed(command)
    assert "finished: label_odds, truth" in printed
    accuracies = {name: arm_accuracies(DataPaths(root=work / name / "data"), name) for name in ("label_odds", "truth")}
    assert accuracies["label_odds"]["full"] == accuracies["truth"]["full"]
    assert set(accuracies["label_odds"]) == {"full", "filtered", "random", "relabeled"}
    assert "0 of 96" in printed, "the truth leaves no wrong label"
    runs = [path for path in (work / "work/cells").iterdir() if path.name != "plans"]
    stamps = {path: path.stat().st_mtime_ns for path in (work / "work/cells").rglob("*.json")}
    assert len(runs) == 2 * 5
    assert _printed(command).splitlines()[-8:] == printed.splitlines()[-8:]
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
