"""Modules compute within `join_process_group`, which sets threads and rounding; process groups have timeouts."""

import ast

import pytest

from tests.fixtures.source_tree import modules, tree


def _name(function: ast.expr) -> str:
    """Return the last part of a function's name."""
    return getattr(function, "id", getattr(function, "attr", ""))


def test_only_join_process_group_makes_a_world() -> None:
    making = {
        name
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and _name(node.func) == "World"
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


_MAKERS = {"init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"}
_SHORTENED = "extra_groups.append"  # `set_collective_timeout` gives these the timeout of the run


def _without_timeout(module: ast.Module) -> list[int]:
    """Return the lines that make a process group without a timeout and do not list it among those that get one."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    listing = [call for call in calls if _name(call.func) == "append" and ast.unparse(call.func) == _SHORTENED]
    listed = {ast.unparse(argument) for call in listing for argument in call.args}
    later = {
        node.value
        for node in ast.walk(module)
        if listed and isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} & listed
    }
    return [
        call.lineno for call in calls if _name(call.func) in _MAKERS and call not in later and not _has_timeout(call)
    ]


def _has_timeout(call: ast.Call) -> bool:
    """The second argument of `new_group` is its timeout."""
    is_new_group = ast.unparse(call.func).endswith("new_group")
    return (is_new_group and len(call.args) >= 2) or "timeout" in {keyword.arg for keyword in call.keywords}


def test_every_process_group_has_a_timeout() -> None:
    """With torch's default a lost rank would be noticed after 10 or 30 minutes."""
    making = {name: _without_timeout(tree(path)) for name, path in modules().items() if name.startswith("pipeline")}
    assert {name: lines for name, lines in making.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("dist.new_group(ranks)", [1]),
        ("dist.new_group(ranks, timeout)", []),
        ("group = new_group(backend='gloo', timeout=timeout)", []),
        ("self.g = dist.new_group()\nextra_groups.append(self.h)", [1]),
        ("self.g = dist.new_group()\nextra_groups.append(self.g)", []),
        ("dist.init_process_group('gloo', 'env://')", [1]),
    ],
)
def test_a_group_without_a_timeout_is_found(text: str, lines: list[int]) -> None:
    assert _without_timeout(ast.parse(text)) == lines
