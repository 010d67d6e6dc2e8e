"""A file of one network in place of another's is readable and whole; whatever reads it refuses it and names it."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from batchsieve import open_results
from pipeline.artifacts.overrides import write_overrides
from pipeline.artifacts.recorded import StageFiles
from pipeline.artifacts.stage_inputs import (
    comparison_inputs,
    export_inputs,
    filter_inputs,
    iteration_inputs,
    map_inputs,
    network_results,
    report_inputs,
)
from pipeline.commands import calibrate, runs
from pipeline.commands.compare import command as compare
from pipeline.commands.export import command as export
from pipeline.commands.iterate.rounds import read_first_round
from pipeline.config.params import check_params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.damages import NETWORKS, damage
from tests.fixtures.projects import NETWORK, folder_arguments
from tests.fixtures.records import record, record_again
from tests.fixtures.report import params_tree, write_artifacts, write_evidence, write_network
from tests.integration.faults.test_damaged_artifacts import check_noticed, damaged, exit_code_of, inputs_of
from viz.data import Source

_SWAPPED = "of another network"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files of two networks, no two of which are equal."""
    folder = tmp_path_factory.mktemp("project")
    tree, data = params_tree(list(NETWORKS)), DataPaths(root=folder / "data")
    tree["studies"]["tiny"] = tree["studies"].pop("digits")
    YAML().dump(tree, folder / "params.yaml")
    write_artifacts(data, check_params(tree, source="params.yaml"))
    write_overrides(data.overrides, [])
    for seed, network in enumerate(NETWORKS):
        write_network(data, network, dropped=6 - seed, seed=seed)
        write_evidence(data, network)
        # Compared before they are opened.
        for path in (data.extractor(network), data.features(network), data.features(network, "test")):
            path.write_bytes(path.name.encode())
        data.features_by_network(network).write_bytes(network.encode())
        for stage in ("finetune", "extract"):
            record(data, stage, network)
    one, other = NETWORKS
    for stage in ("finetune", "extract", "reduce"):
        for path in (data.root / stage).glob(f"{other}.*"):
            if path.read_bytes() == path.with_name(path.name.replace(other, one)).read_bytes():
                assert damage(path, "a value changed"), path
    record_again(data)
    return folder


@pytest.mark.parametrize("stage", ["extract", "reduce", "filter", "train", "report"])
def test_a_stage_notices(project: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    of_networks = [path for path in inputs_of(stage, project) if set(NETWORKS) & {path.parent.name, path.name[:8]}]
    assert of_networks
    for path in of_networks:
        assert check_noticed(stage, project, path, _SWAPPED, capsys), path


def test_a_folder_of_another_network_is_noticed_by_its_record(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    one, other = (copy / "data/filter" / network for network in NETWORKS)
    shutil.copytree(other, one, dirs_exist_ok=True)
    for stage in ("train", "report"):
        assert exit_code_of(stage, copy) == 2
        assert f"error: {one / 'provenance.json'}: " in capsys.readouterr().err


def _export(folder: Path) -> None:
    export.main([str(folder / "out"), *folder_arguments(folder)[:4]])


def _pack(folder: Path) -> None:
    runs.main(["pack", str(folder / "packed.tar.xz"), *folder_arguments(folder)])


def _calibrate(folder: Path) -> None:
    calibrate.main(["--network", NETWORK, "--min-samples", "3", *folder_arguments(folder)[:4]])


def _preview(folder: Path) -> None:
    source = Source(DataPaths(root=folder / "data"))
    source.scorer_inputs(source.points(NETWORK))


_READERS: Mapping[str, tuple[Callable[[Path], object], Callable[[DataPaths], Sequence[StageFiles]]]] = {
    "export": (_export, lambda data: export_inputs(NETWORK, [], data, reads_images=True)),
    "compare": (
        lambda folder: compare.main([str(folder), str(folder)]), lambda data: comparison_inputs([], NETWORKS, data),
    ),
    "calibrate": (
        _calibrate,
        lambda data: [
            *filter_inputs(NETWORK, data),
            StageFiles(stage="reduce", item=NETWORK, files=(data.reduce_metrics(NETWORK),)),
        ],
    ),
    "runs pack": (_pack, lambda data: report_inputs(load_params(data.root.parent / "params.yaml"), data)),
    "iterate": (
        lambda folder: read_first_round(load_params(folder / "params.yaml"), DataPaths(root=folder / "data"), NETWORK),
        lambda data: iteration_inputs(NETWORK, data),
    ),
    "map": (
        lambda folder: Source(DataPaths(root=folder / "data")).points(NETWORK), lambda data: map_inputs(NETWORK, data),
    ),
    "preview": (_preview, lambda data: filter_inputs(NETWORK, data)),
    "open_results": (
        lambda folder: open_results(folder).network(NETWORK), lambda data: network_results(NETWORK, data),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _READERS)
def test_a_command_notices(project: Path, name: str) -> None:
    data, (read, inputs) = DataPaths(root=project / "data"), _READERS[name]
    groups = [group for group in inputs(data) if group.item in NETWORKS]
    noticed = 0
    for path in [path for group in groups for path in (*group.files, data.provenance(group.stage, group.item))]:
        with damaged(path, _SWAPPED) as changed:
            assert changed, path
            with pytest.raises(InputError) as raised:
                read(project)
        noticed += 1
        # Those that contradict each other are named for that.
        if name not in ("map", "preview"):
            assert raised.value.key == str(path)
    assert noticed >= len(groups) > 0
    assert not (project / "out").exists()
    assert not (project / "packed.tar.xz").exists()
