"""Which Python runs, and which `pipeline` it imports."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.commands.checks.finding import Finding, ok, problem, warning
from pipeline.environment import MINIMUM


def check_interpreter(project: Path) -> Iterator[Finding]:
    """The findings about this process's Python and the one on PATH."""
    yield judge_checkout(_installed_pipeline(), project)
    yield judge_python_on_path(_prefix_on_path(), sys.prefix)


def judge_version(version: tuple[int, int, int]) -> Finding:
    """`version`: of the Python that runs."""
    found = ".".join(map(str, version))
    if version[:2] < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        return problem("Python", found, f"remove .venv, then: make setup PYTHON=<Python {wanted} or newer>")
    return ok("Python", found)


def judge_checkout(installed: Path | None, project: Path) -> Finding:
    """`installed`: the package's folder as seen from outside the project; None if it is not."""
    repair = "pip install --no-deps -e ."
    if installed is None:
        return problem("pipeline", "not installed in this Python", repair)
    if installed.resolve() != (project / "pipeline").resolve():
        return problem("pipeline", f"the installed one is another checkout: {installed}", repair)
    return ok("pipeline", "installed from this folder")


def judge_python_on_path(prefix: str | None, running: str) -> Finding:
    """`prefix`: sys.prefix of the `python` on PATH, which dvc.yaml's commands start; None without one."""
    if prefix == running:
        return ok("PATH", f"python is that of {running}")
    return warning(
        "PATH",
        f"python is {f'that of {prefix}' if prefix else 'missing'}, and `dvc repro` would start it",
        f"use make, or: export PATH={running}/bin:$PATH",
    )


def _installed_pipeline() -> Path | None:
    # -P: without the working directory, where every checkout would find itself.
    code = "import importlib.util as u; spec = u.find_spec('pipeline'); print(spec.origin if spec else '')"
    answer = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    origin = answer.stdout.strip()
    return Path(origin).parent if answer.returncode == 0 and origin else None


def _prefix_on_path() -> str | None:
    try:
        answer = subprocess.run(
            ["python", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return answer.stdout.strip() or None
