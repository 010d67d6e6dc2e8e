"""pyproject.toml, environment.yml and requirements.lock name the same packages."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from tests.fixtures.source_tree import ROOT

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_EXTRAS = _PROJECT["optional-dependencies"]
# Neither the extra `all` nor a plain installation needs a package that users have to build, or that only tests need.
_LEFT_OUT = {"horovod", "test-weights", "datasets"}
# Extras that share a package each name it, so that either can be installed alone.
_LINES = list(
    dict.fromkeys(
        [
            *_PROJECT["dependencies"],
            *(line for name, lines in _EXTRAS.items() if name not in {"all", *_LEFT_OUT} for line in lines),
        ]
    )
)


def _lock() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and line[0] not in "# "]


def test_all_is_every_other_extra() -> None:
    (everything,) = (Requirement(line) for line in _EXTRAS["all"])
    assert everything.name == _PROJECT["name"]
    assert everything.extras == set(_EXTRAS) - {"all", *_LEFT_OUT}


def test_no_package_has_two_bounds() -> None:
    names = [canonicalize_name(Requirement(line).name) for line in _LINES]
    assert len(set(names)) == len(names)


def test_the_conda_environment_has_the_same_requirements() -> None:
    python, pip, section = YAML(typ="safe").load(ROOT / "environment.yml")["dependencies"]
    assert python == f"python{_PROJECT['requires-python']}"
    assert pip == "pip"
    assert section["pip"] == [*_LINES, "-e ."]


def test_the_lock_pins_every_package_within_its_bounds() -> None:
    locked: dict[str, list[SpecifierSet]] = {}
    for pin in _lock():
        locked.setdefault(canonicalize_name(pin.name), []).append(pin.specifier)
    for line in _LINES:
        requirement = Requirement(line)
        for specifier in locked[canonicalize_name(requirement.name)]:
            (exact,) = specifier
            assert exact.operator == "=="
            assert requirement.specifier.contains(exact.version, prereleases=True), f"{line}: lock has {exact.version}"


def test_the_lock_is_made_from_pyproject() -> None:
    """Comments in the lock name who requires a package: the project requires exactly those of pyproject.toml."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==.*\n((?:    #.*\n?)+)", text, flags=re.MULTILINE)
    wanted = {canonicalize_name(name) for name, comments in entries if "batchsieve (pyproject.toml)" in comments}
    assert wanted == {canonicalize_name(Requirement(line).name) for line in _LINES}, "run `make lock`"


def test_the_lock_names_no_index() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text(encoding="utf-8")
