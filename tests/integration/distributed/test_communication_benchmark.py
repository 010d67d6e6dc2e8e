"""The table of gradient exchange methods: its launches and its rows."""

import argparse
import json
import sys
from pathlib import Path

import pytest

from benchmarks.communication import exchange_methods, launches
from benchmarks.communication_table import DDP, rows_of
from tests.fixtures.training import run

_ROOT = Path(__file__).parents[3]
_BETWEEN = ["by node", "by node, bf16 between"]


def _launches(ranks: list[int], *names: str) -> list[tuple[int, int, list[str]]]:
    """Ranks, nodes and methods."""
    methods = exchange_methods(steps=8, ranks=2)
    arguments = argparse.Namespace(networks=["small_cnn"], ranks=ranks, ways=names or [*methods], steps=8)
    return [(count, nodes, methods) for _, count, nodes, methods in launches(arguments)]


def test_each_launch_measures_torchs_own_way_and_one_process() -> None:
    launched = _launches([1, 4])
    several = [launch for launch in launched if launch[0] > 1]
    assert launched[::2] == [(1, 1, [DDP])] * (len(several) + 1)
    assert all(names[0] == DDP for _, _, names in several)
    known = set(exchange_methods(steps=8, ranks=4))
    assert {name for _, _, names in several for name in names} == known
    assert len([name for _, _, names in several for name in names[1:]]) == len(known) - 1


def test_what_acts_between_nodes_is_run_on_two_and_nothing_else_is() -> None:
    launched = _launches([4], "bf16", *_BETWEEN)
    assert launched == [(4, 1, [DDP, "bf16"]), (4, 2, [DDP, *_BETWEEN])]
    assert exchange_methods(steps=8, ranks=4)["by node, bf16 between"].settings["workers_per_node"] == 2


def test_an_odd_number_makes_no_two_nodes() -> None:
    assert _launches([3], *_BETWEEN) == []


_ALONE = {"network": "n", "ranks": 1, "nodes": 1, "way": DDP, "weak": [1.0, 1.2], "top1": [0.5]}
_DDP_OF_TWO = {
    **_ALONE, "ranks": 2, "weak": [1.0, 2.0], "strong": [0.5, 1.0], "local": [0.9, 1.9], "top1": [],
}  # fmt: skip


def test_scaling_is_against_one_process_in_the_same_round() -> None:
    """The machine took twice as long in the second round."""
    other = {**_DDP_OF_TWO, "way": "bf16", "weak": [0.8, 1.6], "strong": [0.4, 0.8], "local": [0.72, 1.44]}
    alone, ddp, bf16 = rows_of([{**_ALONE, "weak": [0.8]}, _DDP_OF_TWO, other, _ALONE], batch_size=10)
    # The median of one process is 1 s.
    assert (alone["way"], alone["images_per_s"]) == ("alone", "10.0 (8.3 to 12.5)")
    assert (ddp["images_per_s"], ddp["weak"], ddp["strong"]) == ("15.0 (10.0 to 20.0)", "0.67", "0.67")
    assert (bf16["kept"], bf16["of_ddp"]) == ("0.90 (0.90 to 0.90)", "1.25 (1.25 to 1.25)")
    assert (alone["top1"], ddp["top1"]) == ("0.500 (0.500 to 0.500)", "")


def test_a_launch_that_failed_leaves_the_others_their_rows() -> None:
    failed = {"network": "n", "ranks": 2, "nodes": 2, "way": "by node", "failed": 1}
    rows = rows_of([_ALONE, failed, _DDP_OF_TWO], batch_size=10)
    assert [row["images_per_s"] for row in rows[1:]] == ["failed", "15.0 (10.0 to 20.0)"]


@pytest.mark.slow
def test_two_agents_on_one_machine_are_two_nodes(tmp_path: Path) -> None:
    """Real ranks, after others on one node; compression between nodes is refused on other numbers of nodes."""
    small = ["--networks=small_cnn", "--learning=small_cnn", "--batch-size=8", "--image-size=16", "--steps=4"]
    words = [*small, "--seeds=2", "--rounds=2", "--ranks", "1", "2", f"--out={tmp_path / 'raw.json'}"]
    command = [sys.executable, "-m", "benchmarks.communication", *words, "--ways", "post-local SGD", *_BETWEEN]
    ended = run(command, timeout=500, environ={"PYTHONPATH": str(_ROOT)})
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout.splitlines()[-1])["results"]
    assert [row["way"] for row in rows] == ["alone", DDP, "post-local SGD", DDP, *_BETWEEN]
    assert [row["nodes"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert all(row["top1"] for row in rows)
    raw = json.loads((tmp_path / "raw.json").read_text())
    assert [len(one["weak"]) for one in raw] == [2] * 8
