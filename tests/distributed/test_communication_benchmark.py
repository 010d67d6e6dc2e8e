"""The table of ways to exchange gradients: what is run for it, and what a row says."""

import argparse
import json
import sys
from pathlib import Path

import pytest
from made_up_training import run

from benchmarks.communication import launches, rows_of, ways

_ROOT = Path(__file__).parents[2]
_BETWEEN = ["by node", "by node, bf16 between"]


def _launches(ranks: int, *names: str) -> list[tuple[int, list[str]]]:
    """Nodes and ways."""
    known = ways(steps=8, ranks=2)
    asked = argparse.Namespace(networks=["small_cnn"], ranks=[ranks], ways=names or [*known], steps=8)
    return [(nodes, found) for _, _, nodes, found in launches(asked)]


def test_what_acts_between_nodes_is_run_on_two_and_nothing_else_is() -> None:
    (one, others), (two, between) = _launches(4)
    assert (one, two) == (1, 2)
    assert between == _BETWEEN
    assert set(others) == set(ways(steps=8, ranks=4)) - set(_BETWEEN)
    assert ways(steps=8, ranks=4)["by node, bf16 between"].settings["workers_per_node"] == 2


def test_one_process_goes_one_way_and_an_odd_number_makes_no_two_nodes() -> None:
    assert _launches(1, *_BETWEEN) == [(1, ["buckets of 25 MiB"])]
    assert _launches(3, *_BETWEEN) == []


def test_scaling_is_against_one_process_and_accuracy_empty_where_it_is_the_default_s() -> None:
    alone = {"network": "n", "ranks": 1, "nodes": 1, "way": "w", "weak": 1.0, "strong": 1.0, "local": 1.0, "top1": 0.5}
    two = {**alone, "ranks": 2, "nodes": 2, "weak": 1.25, "strong": 0.625, "top1": None}
    row = rows_of([alone, two], batch_size=10)[1]
    assert (row["images_per_s"], row["weak"], row["strong"], row["kept"]) == (16.0, "0.800", "0.800", "0.800")
    assert (row["nodes"], row["top1"]) == (2, "")


@pytest.mark.slow
def test_two_agents_on_one_machine_are_two_nodes() -> None:
    """Real ranks, after others on one node; compression between nodes is refused on other numbers of nodes."""
    small = ["--networks=small_cnn", "--learning=small_cnn", "--batch-size=8", "--image-size=16", "--steps=4"]
    names = ["buckets of 25 MiB", "post-local SGD", *_BETWEEN]
    words = [*small, "--ranks", "1", "2", "--ways", *names]
    command = [sys.executable, "-m", "benchmarks.communication", *words]
    ended = run(command, timeout=500, environ={"PYTHONPATH": str(_ROOT)})
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout.splitlines()[-1])["results"]
    assert [row["way"] for row in rows] == ["alone", *names]
    assert [row["nodes"] for row in rows] == [1, 1, 1, 2, 2]
    assert [row["way"] for row in rows if row["top1"] == ""] == ["by node"]
