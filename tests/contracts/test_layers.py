"""The imports obey the layers of docs/architecture.md, checked on the syntax trees."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

from pipeline.artifacts.provenance import import_closure
from pipeline.commands.doctor.packages import import_name
from tests.fixtures.source_tree import (
    PACKAGES,
    ROOT,
    imported,
    layers,
    libraries,
    modules,
    project_imports,
    tree,
    unit_of,
)

_UNITS = sorted({unit for name in modules() if (unit := unit_of(name))})
_L1 = sorted(unit for unit, layer in layers().items() if layer == "L1")
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Optional packages that users build; a program that needs one prints how to build it.
_BUILT_BY_HAND = {import_name(Requirement(line)).split(".")[0] for line in _PROJECT["optional-dependencies"]["horovod"]}


def _modules_of(unit: str) -> list[str]:
    return [name for name in modules() if unit_of(name) == unit]


def test_every_unit_has_a_layer() -> None:
    assert set(_UNITS) <= set(layers()), "draw it in docs/architecture.md"


@pytest.mark.parametrize("unit", _UNITS)
def test_imports_point_down(unit: str) -> None:
    """Rule 1. Within a layer imports may go sideways, but not in L1."""
    for name in _modules_of(unit):
        for other in project_imports(name):
            target = unit_of(other)
            if target in (None, unit, "errors", "typing"):
                continue
            assert layers()[target] <= layers()[unit], f"{name} imports {other}, which is above it"
            assert layers()[unit] != "L1", f"{name} imports {other}; L1 imports errors and typing alone"


def test_no_other_unit_imports_stages_or_commands() -> None:
    """Rule 1."""
    for name in modules():
        for other in project_imports(name):
            if unit_of(other) in ("stages", "commands"):
                assert unit_of(name) in ("stages", "commands"), f"{name} imports {other}"


def test_no_module_imports_the_public_package() -> None:
    """Rule 1: batchsieve is above all other packages."""
    for name in modules():
        if not name.startswith("batchsieve"):
            assert not [other for other in project_imports(name) if other.startswith("batchsieve")], name


def test_only_distributed_knows_ranks() -> None:
    """Rule 2."""
    of_ranks = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    variables = {*of_ranks, "MASTER_ADDR", "TORCHELASTIC_RUN_ID"}
    for name, path in modules().items():
        if unit_of(name) == "distributed":
            continue
        assert not [other for other in imported(path) if other.startswith("torch.distributed")], name
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and node.attr == "distributed":
                assert not (isinstance(node.value, ast.Name) and node.value.id == "torch"), f"{path}:{node.lineno}"
            if isinstance(node, ast.Constant):
                assert node.value not in variables, f"{path}:{node.lineno}"


@pytest.mark.parametrize("unit", _L1)
def test_l1_touches_nothing_outside(unit: str) -> None:
    """Rule 3: no files, logging, printing or global seeding."""
    for name in _modules_of(unit):
        path = modules()[name]
        forbidden = {"pathlib", "os", "io", "sys", "shutil", "tempfile", "logging", "warnings", "tqdm", "random"}
        assert not forbidden & {other.split(".")[0] for other in imported(path)}, name
        forked = set(_inside_fork_rng(tree(path)))
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in {"open", "print", "input"}, f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and node not in forked:
                assert not _is_global_randomness(ast.unparse(node)), f"{path}:{node.lineno}"


def _inside_fork_rng(module: ast.Module) -> Iterator[ast.AST]:
    """Yield everything in blocks that restore the state of torch's global generator."""
    for node in ast.walk(module):
        if isinstance(node, ast.With) and "torch.random.fork_rng" in ast.unparse(node.items[0]):
            yield from ast.walk(node)


def _is_global_randomness(expression: str) -> bool:
    """Return whether an expression uses a global generator, such as `np.random.rand` or `torch.manual_seed`."""
    if re.fullmatch(r"torch\.(cuda\.)?(manual_seed|seed)(_all)?", expression):
        return True
    legacy = re.fullmatch(r"(np|numpy)\.random\.(\w+)", expression)
    return legacy is not None and legacy[2] not in {"default_rng", "Generator", "SeedSequence", "Philox", "PCG64"}


def test_global_randomness_is_recognized() -> None:
    for expression in ("torch.manual_seed", "torch.cuda.manual_seed_all", "np.random.seed", "np.random.permutation"):
        assert _is_global_randomness(expression)
    for expression in ("generator.manual_seed", "np.random.default_rng", "torch.randperm", "np.random"):
        assert not _is_global_randomness(expression)


@pytest.mark.parametrize("unit", sorted(unit for unit, layer in layers().items() if layer == "L0"))
def test_l0_needs_no_torch(unit: str) -> None:
    for name in _modules_of(unit):
        assert not {"torch", "torchvision"} & libraries(name), name


def test_viz_uses_l0_stats_scoring_and_figures_and_never_torch() -> None:
    """Rule 4, for direct and indirect imports."""
    # The reader of the filter's inputs.
    reader = {"pipeline.filtering", "pipeline.filtering.inputs"}
    for name in modules():
        if not name.startswith("viz"):
            continue
        assert not {"torch", "torchvision"} & libraries(name), name
        for other in import_closure(name):
            unit = unit_of(other)
            allowed = (
                unit is None
                or layers()[unit] == "L0"
                or unit in ("arms", "stats", "scoring", "figures")
                or other in reader
            )
            assert allowed, f"{name} imports {other}"


@pytest.mark.parametrize("stage", ["finetune", "extract", "train"])
def test_training_runs_on_the_bare_requirements(stage: str) -> None:
    """Rule 5: the requirements of pyproject.toml without extras are enough."""
    bare = {import_name(Requirement(line)).split(".")[0] for line in _PROJECT["dependencies"]}
    needed = libraries(f"pipeline.stages.{stage}") - sys.stdlib_module_names - _BUILT_BY_HAND
    assert needed <= bare, f"not in [project] dependencies: {sorted(needed - bare)}"


def test_every_imported_library_is_required() -> None:
    """A library that only another requirement needs could disappear with it."""
    extras = _PROJECT["optional-dependencies"]
    lines = [
        *_PROJECT["dependencies"],
        *(line for name in ("stages", "viz", "cleanlab", "tuning") for line in extras[name]),
    ]
    required = {import_name(Requirement(line)).split(".")[0] for line in lines}
    used = {other.split(".")[0] for path in modules().values() for other in imported(path)}
    assert used - sys.stdlib_module_names - {*PACKAGES} - _BUILT_BY_HAND <= required
