"""What computes does so in a session, which sets threads and rounding."""

import ast

from tests.fixtures.source_tree import modules, tree


def test_only_a_session_makes_a_world() -> None:
    making = {
        name
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "World"
    }
    # The keys of runs that others will train depend on the world, too.
    of_keys = {"pipeline.commands.planning.size", "pipeline.commands.tuning.run"}
    # One process on a CPU, whatever the machine has: their hashes are compared between machines.
    canonical = {"pipeline.training.canonical_runs"}
    assert making == {"pipeline.distributed.process_group"} | of_keys | canonical
