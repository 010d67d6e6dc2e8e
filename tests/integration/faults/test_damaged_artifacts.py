"""Every stage notices every damage of every file that it reads, and names the file; other files it does not read."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.overrides import write_overrides
from pipeline.artifacts.stage_inputs import stage_inputs
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from pipeline.stages import train as train_stage
from pipeline.stages.filter import filter_images
from pipeline.stages.harness import run_stage
from pipeline.stages.prepare import prepare
from pipeline.stages.reduce import reduce
from pipeline.stages.report import report
from tests.fixtures import training
from tests.fixtures.damages import KINDS, NETWORKS, damage
from tests.fixtures.made_up_runs import MadeUpRuns
from tests.fixtures.projects import NETWORK, folder_arguments
from tests.fixtures.records import record, record_again
from tests.fixtures.report import params_tree, params_with, write_artifacts, write_evidence, write_network
from tests.fixtures.unsaved_figures import figures_unsaved

_SERIAL: Mapping[str, tuple[Callable[..., None], str | None]] = {
    "prepare": (prepare, None),
    "reduce": (reduce, "network"),
    "filter": (filter_images, "network"),
    "report": (report, None),
}
ITEMS = {"finetune": NETWORK, "extract": NETWORK, "reduce": NETWORK, "filter": NETWORK, "train": "tiny"}
_N_SAMPLED = 24
_KINDS_PER_FILE = 5


def exit_code_of(stage: str, folder: Path) -> int:
    """Run a stage in this process and return its exit code; any other exception is a traceback."""
    if stage not in _SERIAL:
        return training.stage(stage, folder)
    body, item = _SERIAL[stage]
    named = ["--network", NETWORK] if item else []
    try:
        run_stage(stage, body, item=item, argv=[*named, *folder_arguments(folder)])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def inputs_of(stage: str, folder: Path) -> list[Path]:
    """Return the files that a stage reads, with the records that they are compared with."""
    data = DataPaths(root=folder / "data")
    params = load_params(folder / "params.yaml")
    groups = stage_inputs(stage, ITEMS.get(stage), params, data)
    files = {path for group in groups for path in (*group.files, *filter(Path.exists, group.optional))}
    return sorted(files | {data.provenance(group.stage, group.item) for group in groups})


@contextmanager
def damaged(path: Path, kind: str) -> Iterator[bool]:
    """Damage a file within the block; yields whether the kind of damage applies to it."""
    before = path.read_bytes()
    try:
        yield damage(path, kind)
    finally:
        path.write_bytes(before)


def check_noticed(stage: str, folder: Path, path: Path, kind: str, errors: pytest.CaptureFixture[str]) -> bool:
    """Check that a stage refuses a damaged file in one line that names it; return whether the damage applies."""
    with damaged(path, kind) as changed:
        if not changed:
            return False
        errors.readouterr()
        code = exit_code_of(stage, folder)
        shown = errors.readouterr().err.splitlines()
    if path.name.endswith("provenance.json") and kind == "missing" and stage != "report":
        assert code == 0
        assert any("no provenance.json of" in line for line in shown)
        return True
    assert code == 2, (stage, path, kind, shown)
    named = shown[-1].removeprefix("error: ").partition(": ")[0]
    assert named in (str(path), str(path.parent)) or "provenance" in path.name, (stage, path, kind, shown)
    assert "`python -m pipeline" in shown[-1] or "missing; run" in shown[-1], (stage, path, kind, shown)
    return True


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that filter and report read, made up."""
    folder = tmp_path_factory.mktemp("made_up")
    data = DataPaths(root=folder / "data")
    write_artifacts(data, params_with(list(NETWORKS)))
    for seed, network in enumerate(NETWORKS):
        write_network(data, network, dropped=6 - seed, seed=seed)
        write_evidence(data, network)
    write_overrides(data.overrides, [])
    YAML().dump(params_tree(list(NETWORKS)), folder / "params.yaml")
    return folder


def test_sampled_damages_are_noticed(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [
        (stage, path, kind)
        for stage in ("filter", "report")
        for path in inputs_of(stage, made_up)
        for kind in KINDS
        if not (path.name.endswith("provenance.json") and kind == "missing")
    ]
    for row in np.random.default_rng(0).choice(len(cases), _N_SAMPLED, replace=False):
        stage, path, kind = cases[row]
        check_noticed(stage, made_up, path, kind, capsys)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny project, of which every stage has run; the runs of its study are made up."""
    folder = tmp_path_factory.mktemp("project")
    tsne = {"perplexity": 5.0, "early_exaggeration_iter": 10, "n_iter": 10, "n_jobs": 1}
    data = training.write_project(
        folder,
        study={"relabel_above": 0.5, "arms": ["full", "filtered", "random", "relabeled"]},
        reduce={"pca": {"n_components": 4}, "tsne": tsne, "n_neighbors": 5},
        filter={"scorer": {"name": "dbscan", "min_samples": 3}, "drop_fraction": 0.1},
    )
    shutil.rmtree(data.kept(NETWORK).parent)
    record(data, "prepare")
    write_overrides(data.overrides, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_stage, "execute_run", MadeUpRuns(lambda spec: 0.5))
        for stage in (*ITEMS, "report"):
            assert exit_code_of(stage, folder) == 0, stage
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("stage", [*ITEMS, "report"])
def test_every_damage_is_noticed(project: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path in inputs_of(stage, project):
        for kind in KINDS:
            if not (path.name.endswith("provenance.json") and kind == "missing" and stage == "finetune"):
                check_noticed(stage, project, path, kind, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [*ITEMS, "report"])
def test_a_stage_reads_no_other_file(project: Path, stage: str, tmp_path: Path) -> None:
    """With the files alone that it is known to read, and the records next to them, it writes the same bytes."""
    copy = tmp_path / "copy"
    data = DataPaths(root=copy / "data")
    # The report lists the versions of all stages.
    records = list((project / "data").rglob("*provenance.json")) if stage == "report" else []
    for path in {*inputs_of(stage, project), *records, project / "data/overrides.csv", project / "params.yaml"}:
        target = copy / path.relative_to(project)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    if stage == "train":
        shutil.copytree(project / "work" / "cells", copy / "work" / "cells")
    assert exit_code_of(stage, copy) == 0
    written = [path for path in (project / "data" / stage).rglob("*") if path.is_file()]
    for path in written:
        if path.name not in ("costs.html", "resources.json"):
            assert (data.root / path.relative_to(project / "data")).read_bytes() == path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["reduce", "filter", "train", "report"])
def test_without_records_no_damage_is_a_traceback(
    project: Path, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in an archive that has tables alone: the readers check what they can."""
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    data = DataPaths(root=copy / "data")
    if stage != "report":  # which lists the versions in the records
        for path in data.root.rglob("*provenance.json"):
            path.unlink()
    rng = np.random.default_rng(0)
    for path in [
        path for path in inputs_of(stage, copy) if path.exists() and not path.name.endswith("provenance.json")
    ]:
        for kind in rng.choice(KINDS, _KINDS_PER_FILE, replace=False):
            with damaged(path, kind), figures_unsaved(laid_out=True):
                record_again(data)
                code = exit_code_of(stage, copy)
            assert code in (0, 2), (path, kind, capsys.readouterr().err)
