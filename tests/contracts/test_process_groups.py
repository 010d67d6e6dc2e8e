"""Modules compute within `join_process_group`, which sets threads and rounding."""

import ast

from tests.fixtures.source_tree import modules, tree


def test_only_join_process_group_makes_a_world() -> None:
    making = {
        name
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "World"
    }
    # The keys of runs that other processes train depend on the world, too.
    of_keys = {
        "pipeline.commands.plan.size",
        "pipeline.commands.tune.run",
        "pipeline.commands.verify.studies",
    }
    # The canonical runs use one CPU process on every machine: their hashes are compared between machines.
    canonical = {"pipeline.training.canonical_runs"}
    assert making == {"pipeline.distributed.process_group"} | of_keys | canonical
