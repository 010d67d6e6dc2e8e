"""Unit tests lie where the code lies: a test file is named after a module, and maybe a topic of it."""

from functools import cache
from pathlib import Path

from tests.fixtures.source_tree import ROOT

_UNIT = ROOT / "tests/unit"
_PACKAGES = {"batchsieve", "benchmarks", "viz"}
# What they test is no module of the same folder: files, commands of make, a whole package, or another library.
_OTHERS = {
    "batchsieve/test_public_module.py",
    "commands/test_main.py",
    "commands/test_makefile.py",
    "config/test_headline_preset.py",
    "config/test_presets.py",
    "stats/test_statsmodels.py",
    "test_openblas.py",
    "tuning/test_tuning_processes.py",
}
_FILES = sorted(str(path.relative_to(_UNIT)) for path in _UNIT.rglob("test_*.py"))


@cache
def _names(folder: Path) -> set[str]:
    """Return the names of the modules and packages in a folder and below it."""
    return {path.stem for path in folder.rglob("*") if path.is_dir() or path.suffix == ".py"}


def _is_named_after_a_module(path: Path) -> bool:
    """Return whether a module of the folder that `path` in tests/unit mirrors has its name, or the start of it."""
    name = path.stem.removeprefix("test_")
    folder = (ROOT if path.parts[0] in _PACKAGES else ROOT / "pipeline") / path.parent
    names = _names(folder) if path.parent.parts else _names(folder) | _names(ROOT / "tests/fixtures")
    return any(name == module or name.startswith(f"{module}_") for module in names)


def test_a_unit_test_is_named_after_a_module_of_its_folder() -> None:
    assert {file for file in _FILES if not _is_named_after_a_module(Path(file))} == _OTHERS
