"""Descriptions of machines: those of the project, as the simulator takes them, and what is refused."""

from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.simulator.machine import NO_LINK, load_machine
from tests.fixtures.printed_errors import key_within

_FOLDER = Path(__file__).parents[3] / "machines"

_GOOD = """\
nodes: 2
gpus_per_node: 4
intra_node: {latency_seconds: 1e-6, bytes_per_second: 50e9}
inter_node: {latency_seconds: 1e-5, bytes_per_second: 12.5e9, adapters_per_node: 2}
"""


@pytest.mark.parametrize(
    ("name", "gpus", "node_bytes_per_second"),
    [("summit", 27_648, 25e9), ("dgx-h100-pod", 1016, 400e9), ("8x100gbe", 8, 12.5e9)],
)
def test_machines_of_the_project_are_what_their_sources_say(name: str, gpus: int, node_bytes_per_second: float) -> None:
    described = load_machine(_FOLDER / f"{name}.yaml").machine
    assert described.nodes * described.gpus_per_node == gpus
    assert described.inter_node.bytes_per_second == node_bytes_per_second
    # src/graph/tuning.cc of NCCL, of the Simple protocol over a network.
    assert (described.inter_node.latency_seconds, described.inter_node.tree_hop_seconds) == (9.6e-6, 50e-6)


def test_every_machine_of_the_project_has_its_facts_tested() -> None:
    assert sorted(path.stem for path in _FOLDER.iterdir()) == ["8x100gbe", "dgx-h100-pod", "summit"]


def test_the_adapters_of_a_node_add_up(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(_GOOD, encoding="utf-8")
    described = load_machine(path).machine
    assert described.inter_node.bytes_per_second == 25e9
    assert described.inter_node.latency_seconds == described.inter_node.tree_hop_seconds == 1e-5


def test_one_node_needs_no_network(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    lines = _GOOD.splitlines()
    path.write_text("\n".join(["nodes: 1", *lines[1:3], "inter_node: null"]), encoding="utf-8")
    assert load_machine(path).machine.inter_node == NO_LINK


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("nodes: 2", "nodes: 0", "nodes"),
        ("nodes: 2", "nodes: 1", "(top level)"),
        ("gpus_per_node: 4", "gpus_per_node: 1", "(top level)"),
        ("intra_node: {latency_seconds: 1e-6, bytes_per_second: 50e9}", "intra_node: null", "(top level)"),
        ("adapters_per_node", "adapter_per_node", "inter_node.adapter_per_node"),
        ("50e9", "0", "intra_node.bytes_per_second"),
        ("50e9", ".inf", "intra_node.bytes_per_second"),
        ("50e9", "50 GB", "intra_node.bytes_per_second"),
        ("gpus_per_node: 4\n", "", "gpus_per_node"),
        ("nodes: 2", "nodes: [2", None),
        ("nodes: 2", "nodes: 2\nassumed: [outside.latency_seconds]", "(top level)"),
        ("nodes: 2", "nodes: 2\nassumed: [nodes]\nmeasured: [nodes]", "(top level)"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, key: str | None) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(_GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_machine(path)
    assert refused.value.key == str(path)
    assert key is None or key_within(refused.value, path) == key


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        load_machine(tmp_path / "none.yaml")
    assert refused.value.key == str(tmp_path / "none.yaml")


def test_every_figure_has_an_origin(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(_GOOD + "assumed: [nodes]\nmeasured: [inter_node.latency_seconds]\n", encoding="utf-8")
    origins = load_machine(path).origins
    assert [key for key, origin in origins.items() if origin == "assumed"] == ["nodes"]
    assert [key for key, origin in origins.items() if origin == "measured"] == ["inter_node.latency_seconds"]
    assert len(origins) == 7
    assert list(origins.values()).count("given") == 5


@pytest.mark.parametrize("path", sorted(_FOLDER.iterdir()), ids=lambda path: path.stem)
def test_what_a_comment_calls_an_assumption_is_marked_as_assumed(path: Path) -> None:
    """As many figures as the comments of the file speak of."""
    text = path.read_text(encoding="utf-8").partition("assumed:")[0].lower()
    assert len(load_machine(path).assumed) == text.count("assumption")
