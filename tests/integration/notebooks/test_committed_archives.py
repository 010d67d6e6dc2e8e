"""The archives of docs/results open in `open_results`, and the calls of the notebooks give the published results."""

import csv
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from batchsieve import InputError, Results, figures, open_results
from benchmarks.unpacking import unpack
from pipeline.artifacts.files import open_array, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import WorkPaths
from pipeline.runs.ledger import Ledger
from tests.fixtures.notebooks import by_stem, run_here
from tests.fixtures.source_tree import ROOT

_RESULTS = ROOT / "docs/results"
_HEADLINE = _RESULTS / "headline"
_LAW_LEDGERS = (
    "law/2026-11-28-first-plan/ledger.tar.xz",
    "law/2026-11-28-oracle/ledger.tar.xz",
    "law/2026-11-28-runs/ledger.tar.xz",
)
_GPU_RUNS = "gpu/2026-11-27/runs.tar.xz"
# Study, and the effects of docs/results/verdict.md against each control, in percentage points of top-1.
_PUBLISHED: Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]] = {
    "convergence/2026-11-22-convergence": (
        "convergence",
        {"full": ("undecided", "−0.22 (−1.11 to +0.67)"), "random": ("undecided", "−0.31 (−1.37 to +0.75)")},
    ),
    "planted-noise/2026-11-23-planted-noise": (
        "label_odds",
        {"full": ("helps", "+3.99 (+2.14 to +5.85)"), "random": ("helps", "+3.75 (+2.08 to +5.42)")},
    ),
    "replication/2026-11-22-paper-small": (
        "fig7",
        {"full": ("undecided", "+0.13 (−0.14 to +0.40)"), "random": ("undecided", "+0.04 (−0.80 to +0.88)")},
    ),
}
each_archive = pytest.mark.parametrize("name", _PUBLISHED)


def test_every_archive_is_tested() -> None:
    packed = {path.parent.relative_to(_RESULTS).as_posix() for path in _RESULTS.rglob("results.tar.xz")}
    assert packed == set(_PUBLISHED)
    others = sorted(path.relative_to(_RESULTS).as_posix() for path in _RESULTS.rglob("*.tar.xz"))
    assert [path for path in others if not path.endswith("/results.tar.xz")] == [
        _GPU_RUNS,
        "headline/2026-11-25-filter/filter.tar.xz",
        "headline/2026-11-25-runs/ledger.tar.xz",
        "headline/2026-11-29-tables/tables.tar.xz",
        _LAW_LEDGERS[0],
        "law/2026-11-28-oracle/filter.tar.xz",
        _LAW_LEDGERS[1],
        "law/2026-11-28-runs/filter.tar.xz",
        _LAW_LEDGERS[2],
    ]


def _opened(name: str, folder: Path) -> Results:
    """Unpack an archive, with stand-ins for what `prepare` writes: labels of the test images, and names of classes."""
    unpack(_RESULTS / name / "results.tar.xz", folder)
    results = open_results(folder)
    _write_stand_ins(results, study=_PUBLISHED[name][0])
    return results


def _write_stand_ins(results: Results, *, study: str) -> None:
    # Every archive is of CIFAR-10. The labels decide the differences of classes, and no verdict over all images.
    n_test = open_array(results.data.correct(study), dtype=np.bool_, ndim=2).shape[1]
    write_parquet(results.data.manifest("test"), pa.table({"label": np.arange(n_test) % 10}))
    write_json(results.data.prepare_metrics, {"class_names": [f"class {label}" for label in range(10)]})


@each_archive
def test_a_study_has_the_published_verdicts(name: str, tmp_path: Path) -> None:
    results = _opened(name, tmp_path)
    published, effects = _PUBLISHED[name]
    study = results.study(published)
    assert len(study.finished) == len(study.runs)
    assert [run.top1 for run in study.runs] == pytest.approx(study.correct.mean(axis=1))
    assert {one.control: (one.outcome, one.effect) for one in study.verdicts()} == effects


@each_archive
def test_a_network_has_the_images_that_were_trained_on(name: str, tmp_path: Path) -> None:
    results = _opened(name, tmp_path)
    for of_network in results.networks:
        network = results.network(of_network)
        with results.data.kept(of_network).open(newline="") as file:
            assert network.keep.sum() == sum(1 for _ in csv.reader(file)) - 1
        scores = network.score[network.dropped()]
        assert (np.diff(scores) <= 0).all()
        assert network.coordinates.shape == (len(network), 2)
        if "neighbours" in network.points.column_names:
            assert network.neighbors.shape[0] == len(network)
        else:
            with pytest.raises(InputError, match="has no column neighbours"):
                assert network.neighbors


@pytest.mark.slow
@each_archive
def test_the_notebooks_show_tables_and_figures(name: str, tmp_path: Path) -> None:
    results = _opened(name, tmp_path)
    study, networks = results.study(_PUBLISHED[name][0]), [results.network(one) for one in results.networks]
    network, names = networks[0], study.class_names
    tables = [study.accuracy_table(), study.difference_table(), study.class_table(), network.to_pandas()]
    assert all(len(table) for table in tables)
    assert list(study.class_table()["class"]) == [*names, "worst class"]
    study.critical_batch_table()
    shown = [
        figures.accuracy(study),
        figures.training_loss(study),
        figures.differences(study),
        figures.class_differences(study),
        figures.dropped_share(networks),
        figures.noise_by_class(networks, names),
        figures.variance_kept(network),
        figures.class_map(network.coordinates, network.labels, names, network.is_noise),
    ]
    assert all(picture.content.startswith(b"\x89PNG") for picture in shown)


def test_the_headline_opens_with_its_runs_and_filter(tmp_path: Path) -> None:
    """Its filter lacks what only a notebook shows."""
    shutil.copy(_HEADLINE / "2026-11-25-rates/params.yaml", tmp_path)
    unpack(_HEADLINE / "2026-11-25-filter/filter.tar.xz", tmp_path)
    unpack(_HEADLINE / "2026-11-25-runs/ledger.tar.xz", tmp_path)
    results = open_results(tmp_path)
    network = results.networks[0]
    assert "batch_6272" in results.studies
    keep = read_parquet(results.data.points(network), ["keep"])["keep"].to_numpy()
    with results.data.kept(network).open(newline="") as file:
        assert keep.sum() == sum(1 for _ in csv.reader(file)) - 1
    with pytest.raises(InputError, match=re.escape(str(results.data.embedding(network, "test")))):
        results.network(network)
    ledger = Ledger(WorkPaths(root=tmp_path / ".work").ledger)
    runs = [ledger.get(key.fingerprint) for key in ledger.run_keys()]
    page = (_HEADLINE / "README.md").read_text(encoding="utf-8")
    accuracies = [run.top1 for run in runs if run.top1 is not None]
    assert len(accuracies) == len(runs)
    assert [top1 for top1 in accuracies if f"{100 * top1:.2f} %" not in page] == []
    assert all(run.top1 == pytest.approx(run.correct.mean()) for run in runs if run.correct is not None)


# Study of the headline, and the effect against all images that its page states.
_HEADLINE_EFFECTS = {
    "batch_6272": ("hurts", "−0.55 (−1.08 to −0.02)"),
    "batch_256": ("undecided", "−0.26 (−0.81 to +0.29)"),
    "batch_20480": ("undecided", "+0.01 (−1.00 to +1.02)"),
    "slopes": ("undecided", "−0.34 (−0.71 to +0.03)"),
}


@pytest.fixture
def headline_tables(tmp_path: Path) -> Path:
    """A project of the finished studies of the headline, with stand-ins for what `prepare` writes."""
    tables = _HEADLINE / "2026-11-29-tables"
    shutil.copy(tables / "params.yaml", tmp_path)
    unpack(tables / "tables.tar.xz", tmp_path)
    _write_stand_ins(open_results(tmp_path), study="batch_6272")
    return tmp_path


def test_the_headline_has_its_published_verdicts(headline_tables: Path) -> None:
    results = open_results(headline_tables)
    studies = [results.study(name) for name in results.studies]
    assert [len(study.finished) for study in studies] == [30, 12, 12, 48]
    verdicts = {study.name: verdict for study in studies for verdict in study.verdicts() if verdict.is_primary}
    assert {name: (one.outcome, one.effect) for name, one in verdicts.items()} == _HEADLINE_EFFECTS
    page = (_HEADLINE / "README.md").read_text(encoding="utf-8")
    effects = [effect for _, effect in _HEADLINE_EFFECTS.values()]
    low_and_high = [effect.partition("(")[2].rstrip(")") for effect in effects]
    assert [interval for interval in low_and_high if interval not in page] == []


@pytest.mark.slow
def test_the_headline_opens_in_the_notebooks(headline_tables: Path) -> None:
    shown = run_here(by_stem("03_batch_scaling"), headline_tables)
    assert "batch_6272: 30 of 30 runs finished" in shown
    assert "resources.json: missing" in shown
    shutil.rmtree(headline_tables / "notebooks")
    lines = run_here(by_stem("04_the_verdict"), headline_tables).splitlines()
    assert lines[-4:] == [
        f"{name}: {outcome}, {effect} against full" for name, (outcome, effect) in _HEADLINE_EFFECTS.items()
    ]


@pytest.mark.parametrize("archive", _LAW_LEDGERS)
def test_the_page_of_the_law_has_each_run(archive: str, tmp_path: Path) -> None:
    unpack(_RESULTS / archive, tmp_path)
    ledger = Ledger(WorkPaths(root=tmp_path / ".work").ledger)
    runs = [ledger.get(key.fingerprint) for key in ledger.run_keys()]
    page = (_RESULTS / "law/README.md").read_text(encoding="utf-8")
    assert runs
    assert [run.top1 for run in runs if run.top1 is not None and f"{100 * run.top1:.2f} %" not in page] == []
    assert all(run.outcome.startswith("diverged") for run in runs if run.top1 is None)
    assert all(run.top1 == pytest.approx(run.correct.mean()) for run in runs if run.correct is not None)


def test_runs_on_two_gpus_of_one_kind_have_equal_chains(tmp_path: Path) -> None:
    """Those of batch 20,480 were trained twice: plainly, and by other code as recorded steps on another machine."""
    unpack(_RESULTS / _GPU_RUNS, tmp_path)
    chains: list[dict[tuple[str, int], list[str]]] = []
    for visit in ("first", "second"):
        ledger = Ledger(tmp_path / visit / "cells")
        keys = [key for key in ledger.run_keys() if key.job["settings"]["batch_size"] == 20480]
        chains.append(
            {
                (key.job["members"], key.job["settings"]["seed"]): [
                    link.sha256 for link in ledger.get(key.fingerprint).links
                ]
                for key in keys
            }
        )
    first, second = chains
    assert len(first) == 5
    assert all(len(links) == 12 and links == second[run] for run, links in first.items())
