"""Forged projects of ten kinds, of which `verify` names those that it can, and honest ones, which it accepts.

FORGED_PER_KIND is the number of each kind; there are five times as many honest ones. `make campaign-verify` makes 200
and 100, and prints the table of docs/guides/verify.md.
"""

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.commands.verify.command import verify
from pipeline.commands.verify.findings import Findings
from pipeline.commands.verify.recorded import Project, read_project
from pipeline.commands.verify.retraining import audit_runs, choose_runs, retrainer
from pipeline.commands.verify.studies import StudyRun, VerifiedStudy
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.runs.ledger import RunResult
from pipeline.stats.estimates import chance_of_detection
from tests.fixtures.forgeries import FORGERIES, Forgery
from tests.fixtures.report import params_tree
from tests.fixtures.training import ALONE
from tests.fixtures.verified import STUDY, train, write_report, write_results

pytestmark = pytest.mark.slow

_EACH = int(os.environ.get("FORGED_PER_KIND", "3"))
_HONEST, _AT_A_TIME = 5 * _EACH, 5
_AUDITED = 3
"""Runs of 8 that are trained again."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _verified(folder: Path) -> tuple[Project, dict[str, VerifiedStudy], Findings]:
    findings = Findings()
    data, work = DataPaths(root=folder / "data"), WorkPaths(root=folder / ".work")
    project = read_project(folder / "params.yaml", data, work, findings)
    return project, verify(project, findings), findings


@pytest.fixture(scope="module")
def trained_again(honest: Path) -> Mapping[str, RunResult]:
    """Each run of the honest project, trained again: a forgery leaves the keys of runs as they are."""
    project, studies, _ = _verified(honest)
    retrain = retrainer(project, ALONE, RunLog.silent())
    return {run.fingerprint: retrain(run) for run in studies["digits"].runs}


def _is_found(folder: Path, seed: int, trained_again: Mapping[str, RunResult]) -> tuple[bool, bool]:
    """Return whether a project is named at no cost, and whether it is by an audit of `_AUDITED` runs."""
    project, studies, findings = _verified(folder)
    sample = choose_runs(project, studies, count=_AUDITED, seed=seed, world=ALONE)
    assert len(sample.chosen) == _AUDITED or findings.differences

    def retrain(run: StudyRun) -> RunResult:
        return trained_again.get(run.fingerprint) or retrainer(project, ALONE, RunLog.silent())(run)

    outcomes = [outcome for outcome, _ in audit_runs(project, sample, retrain, confirm=lambda *_: "")]
    return bool(findings.differences), "differs" in outcomes


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.name)
def test_forged_projects(
    forgery: Forgery, honest: Path, trained_again: Mapping[str, RunResult], tmp_path: Path
) -> None:
    free = audited = 0
    chances = []
    for seed in range(_EACH):
        folder = tmp_path / str(seed)
        shutil.copytree(honest, folder)
        n_false = forgery.forge(folder, np.random.default_rng([seed, FORGERIES.index(forgery)]))
        chances.append(chance_of_detection(8, _AUDITED, n_false))
        at_no_cost, by_training = _is_found(folder, seed, trained_again)
        free, audited = free + at_no_cost, audited + by_training
        shutil.rmtree(folder)
    expected = sum(chances)
    print(f"\n| {forgery.name} | {free} of {_EACH} | {audited} of {_EACH} | {expected:.1f} |")
    if forgery.shows:
        assert free == _EACH
    else:
        assert free == 0, "a line that only training again can justify"
        spread = np.sqrt(sum(chance * (1 - chance) for chance in chances))
        assert abs(audited - expected) <= stats.norm.ppf(0.9999) * spread


def _honest_trees() -> Iterator[dict[str, Any]]:
    """Yield parameters of studies that differ in seeds, arms, sizes, rates, optimizers, looks and replicates."""
    rng = np.random.default_rng(0)
    arms = [
        ["full"],
        ["full", "filtered"],
        ["filtered", "random"],
        ["full", "filtered", "random_uniform"],
        ["filtered"],
    ]
    recipes: list[dict[str, Any]] = [
        {}, {"ema_decay": 0.9}, {"reduction": "exact"}, {"label_smoothing": 0.1},
        {"optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}},
    ]  # fmt: skip
    for number in itertools.count():
        seeds = sorted(int(seed) for seed in rng.choice(1000, size=rng.integers(1, 4), replace=False))
        study: dict[str, Any] = {
            **STUDY,
            "arms": arms[rng.integers(len(arms))],
            "seeds": seeds,
            "batch_sizes": [int(size) for size in rng.choice([8, 12, 16, 20], size=rng.integers(1, 3), replace=False)],
            "budget": {"steps": int(rng.integers(1, 4))},
            "match": str(rng.choice(["steps", "epochs"])),
            "plan": STUDY["plan"] if rng.random() < 0.5 else None,
            "recipe": recipes[rng.integers(len(recipes))],
        }
        if rng.random() < 0.3:
            study["accuracy_every"] = {"steps": 1}
        networks = ["resnet18"]
        if "random" in study["arms"] and rng.random() < 0.5:
            study |= {"seeds": [0, 1, 2], "looks": [2, 3]}
        elif study["arms"] != ["full"] and rng.random() < 0.4:
            networks, study["filter_replicates"] = ["resnet18", "resnet18-r1"], 2
        study["needs"] = "prepare" if study["arms"] == ["full"] else "filter" if len(networks) > 1 else None
        tree = params_tree(networks, **study)
        if number % 4 == 0:
            # A second study that shares runs with the first.
            tree["studies"]["more"] = {**tree["studies"]["digits"], "weight_decays": [5e-4, 0.0]}
        yield tree


@pytest.mark.parametrize("first", range(0, _HONEST, _AT_A_TIME))
def test_honest_projects(first: int, tmp_path: Path) -> None:
    named, audited = [], 0
    for number, tree in itertools.islice(enumerate(_honest_trees()), first, first + _AT_A_TIME):
        folder = write_results(tmp_path / str(number), tree)
        if number % 5 == 0:
            # A seed is added openly.
            study = tree["studies"]["digits"]
            if not study.get("looks"):
                study["seeds"] = [*study["seeds"], 2000]
                write_results(folder, tree)
        if number % 7 == 0:
            train(folder, "digits")
            write_report(folder)
        project, studies, findings = _verified(folder)
        sample = choose_runs(project, studies, count=2, seed=number, world=ALONE)
        outcomes = list(audit_runs(project, sample, retrainer(project, ALONE, RunLog.silent()), confirm=lambda *_: ""))
        audited += len(outcomes)
        if findings.differences or any(outcome != "equal" for outcome, _ in outcomes):
            named.append((number, findings.differences[:3], outcomes))
        shutil.rmtree(folder)
    print(f"\n| honest, from {first} | {len(named)} of {_AT_A_TIME} | {audited} runs trained again |")
    assert named == []
