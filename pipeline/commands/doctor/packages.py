"""Checks of doctor: the packages are installed, within bounds and importable; in a clone, also as locked.

The bounds are those of a clone's pyproject.toml or, in another project, of the installed package.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from pipeline.commands.doctor.command import INSTALL, INSTALL_PACKAGE, Finding, install_command, ok, problem, warning
from pipeline.environment import is_clone

_PACKAGE = "batchsieve"

_REINSTALL_TORCH = "pip install --force-reinstall torch torchvision (both from one source: pip, or conda-forge)"

# Extras that `dvc repro` runs without.
_OPTIONAL = ("viz", "notebooks", "cleanlab", "tuning", "docs", "dev")

# Extras that a project outside a clone uses.
_OF_PROJECTS = ("stages", "viz")

# Modules whose name differs from that of their distribution. Stub packages have no module.
_MODULES = {
    "faiss-cpu": "faiss",
    "mkdocs-material": "material",
    "huggingface-hub": "huggingface_hub",
    "nvidia-ml-py": "pynvml",
    "pillow": "PIL",
    "pytest-timeout": "pytest_timeout",
    "scikit-learn": "sklearn",
}

_IMPORT_EACH = """
import importlib, os, sys, warnings
warnings.simplefilter("ignore")
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # keeps what the modules print out of the answers
for name in sys.argv[1:]:
    print(name, end="\\t", file=answers, flush=True)
    try:
        importlib.import_module(name)
        print(file=answers, flush=True)
    except BaseException as error:  # importing a module runs any code, which may also exit
        print(type(error).__name__, " ".join(str(error).split()), sep=": ", file=answers, flush=True)
"""


def check_packages(project: Path) -> Iterator[Finding]:
    """Check all that pyproject.toml requires, or the installed package."""
    try:
        groups = read_requirements(project / "pyproject.toml") if is_clone(project) else installed_requirements()
    except metadata.PackageNotFoundError:
        yield problem(_PACKAGE, "not installed in this Python", INSTALL_PACKAGE)
        return
    required = [requirement for group in groups.values() for requirement in group]
    installed = {requirement.name: installed_version(requirement.name) for requirement in required}
    findings = [
        check_package_version(requirement, installed[requirement.name], group, install=install_command(project))
        for group, requirements in groups.items()
        for requirement in requirements
    ]
    wrong = [finding for finding in findings if finding.status != "ok"]
    yield from wrong or [ok("packages", f"all {len(findings)} within their bounds")]
    if is_clone(project):
        yield check_locked_versions(installed, read_lock(project / "requirements.lock"))
    yield from check_torch_pair(installed.get("torch"), _distribution_requirements("torchvision"))
    yield from _check_imports([*groups["pipeline"], *groups["stages"], *groups["viz"]], installed)


def read_requirements(pyproject: Path) -> dict[str, list[Requirement]]:
    """Return group -> requirements of pyproject.toml: `pipeline` and the extras.

    A package is in the first group that names it.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    groups = {"pipeline": project["dependencies"], **{name: extras[name] for name in ("stages", *_OPTIONAL)}}
    return _without_repetitions({name: [Requirement(line) for line in lines] for name, lines in groups.items()})


def installed_requirements() -> dict[str, list[Requirement]]:
    """Return group -> requirements of the installed package: `pipeline`, `stages` and `viz`.

    A package is in the first group that names it.

    Raises:
        PackageNotFoundError: the code runs without an installation.
    """
    declared = [Requirement(line) for line in metadata.requires(_PACKAGE) or ()]
    return _without_repetitions(
        {
            group: [
                Requirement(f"{requirement.name}{requirement.specifier}")
                for requirement in declared
                if requirement.marker is None or requirement.marker.evaluate({"extra": group})
            ]
            for group in ("pipeline", *_OF_PROJECTS)
        }
    )


def _without_repetitions(groups: Mapping[str, Sequence[Requirement]]) -> dict[str, list[Requirement]]:
    seen: set[str] = set()
    kept = {}
    for group, requirements in groups.items():
        kept[group] = [requirement for requirement in requirements if requirement.name not in seen]
        seen |= {requirement.name for requirement in requirements}
    return kept


def read_lock(path: Path) -> dict[str, str]:
    """Return canonical name -> version, for the lines whose markers hold on this Python and system."""
    locked = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and line[0].isalnum():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                (pin,) = requirement.specifier
                locked[str(canonicalize_name(requirement.name))] = pin.version
    return locked


def installed_version(name: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_package_version(requirement: Requirement, installed: str | None, group: str, *, install: str) -> Finding:
    """Check that a package is installed and within its bounds.

    Args:
        requirement: the package and its bounds.
        installed: its version; None if it is missing.
        group: of `read_requirements`. A package that `dvc repro` does not need gives a warning.
        install: the fix.
    """
    make_finding = warning if group in _OPTIONAL else problem
    if installed is None:
        return make_finding(requirement.name, f"missing ({requirement})", install)
    if not requirement.specifier.contains(installed, prereleases=True):
        return make_finding(requirement.name, f"{installed} is outside {requirement}", install)
    return ok(requirement.name, installed)


def check_locked_versions(installed: Mapping[str, str | None], locked: Mapping[str, str]) -> Finding:
    """Check that the installed versions are those that made the results."""
    differing = [
        f"{name} {version} (lock: {locked.get(str(canonicalize_name(name)), 'none')})"
        for name, version in installed.items()
        if version is not None and Version(version).public != locked.get(str(canonicalize_name(name)))
    ]
    if differing:
        detail = f"{len(differing)} packages differ: {', '.join(differing)}"
        return warning("lock", detail, f"for equal results: {INSTALL}")
    return ok("lock", "the versions of requirements.lock")


def check_torch_pair(torch: str | None, torchvision_requires: Sequence[Requirement]) -> Iterator[Finding]:
    """Check that torchvision was built for this torch; yields nothing if it was, or if one is missing."""
    for requirement in torchvision_requires:
        if requirement.name == "torch" and torch and not requirement.specifier.contains(torch, prereleases=True):
            yield problem("torchvision", f"built for {requirement}, but {torch} is installed", _REINSTALL_TORCH)


def import_finding(name: str, error: str) -> Finding:
    """Return the finding for an import of `name` that failed with `error`."""
    if "torchvision::nms" in error:
        return problem(name, f"does not match the installed torch: {error}", _REINSTALL_TORCH)
    repair = _REINSTALL_TORCH if name in ("torch", "torchvision") else f"pip install --force-reinstall {name}"
    return problem(name, f"cannot be imported: {error}", f"{repair}; if the error remains: make a new environment")


def import_errors(modules: Sequence[str]) -> dict[str, str]:
    """Import modules in a new process; returns module -> error for those that fail.

    A module that ends the process hides those after it.
    """
    command = [sys.executable, "-c", _IMPORT_EACH, *modules]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    errors = {}
    for line in answer.stdout.splitlines():
        name, tab, error = line.partition("\t")
        if tab and error:
            errors[name] = error
    last = answer.stdout.splitlines()[-1] if answer.stdout else ""
    if answer.returncode and last.endswith("\t"):
        errors[last.rstrip("\t")] = f"ends Python with code {answer.returncode}"
    return errors


def import_name(requirement: Requirement) -> str:
    """Return the name of a distribution's module."""
    return _MODULES.get(requirement.name, requirement.name)


def _check_imports(requirements: Sequence[Requirement], installed: Mapping[str, str | None]) -> Iterator[Finding]:
    present = {
        import_name(requirement): requirement.name for requirement in requirements if installed[requirement.name]
    }
    errors = import_errors(list(present))
    for module, error in errors.items():
        yield import_finding(present[module], error)
    if not errors:
        yield ok("imports", f"{len(present)} packages")


def _distribution_requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return []
