"""git and DVC: `dvc repro` needs both, and a repository."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.commands.checks.finding import INSTALL, Finding, ok, problem


def check_tools(project: Path) -> Iterator[Finding]:
    """The findings about git, the repository and DVC."""
    git = _run(["git", "--version"], project)
    repository = _run(["git", "rev-parse", "--is-inside-work-tree"], project) is not None
    yield judge_git(git, repository=repository)
    beside = Path(sys.executable).with_name("dvc")
    version = _run([str(beside), "--version"], project) if beside.exists() else _run(["dvc", "--version"], project)
    yield judge_dvc(version, initialised=(project / ".dvc").is_dir())


def judge_git(version: str | None, *, repository: bool) -> Finding:
    """`version`: what git says of itself; None if it does not run."""
    if version is None:
        return problem("git", "missing, and DVC needs it", "install git with the system's package manager")
    if not repository:
        return problem("git", "this folder is not in a git repository, and DVC needs one", "git clone it, or: git init")
    return ok("git", version.removeprefix("git version "))


def judge_dvc(version: str | None, *, initialised: bool) -> Finding:
    """`version`: what DVC says of itself; None if it does not run."""
    if version is None:
        repair = f"{INSTALL}; if it is there: pip install --force-reinstall dvc"
        return problem("dvc", "missing or does not start", repair)
    if not initialised:
        return problem("dvc", "this folder has no .dvc", "git checkout .dvc")
    return ok("dvc", version)


def _run(command: list[str], folder: Path) -> str | None:
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
