"""`python -m pipeline doctor`: check the installation and print a fix for each mismatch.

In a clone it also compares with the clone's code and requirements.lock.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pipeline.commands import command_parser, is_pipeline
from pipeline.environment import MINIMUM_PYTHON, is_clone
from pipeline.errors import InputError

INSTALL = "pip install -c requirements.lock -e '.[all]'"  # in a clone
INSTALL_PACKAGE = "pip install 'batchsieve[stages,viz]'"

# Bytes.
_RECOMMENDED_DISK = 10e9
_MINIMUM_DISK = 1e9
_RECOMMENDED_SHARED_MEMORY = 1e9

_TORCH_PROBE = """
import json, torch
count = torch.cuda.device_count()
names = [torch.cuda.get_device_name(index) for index in range(count)]
nccl = torch.cuda.nccl.is_available([]) if count else False
print(json.dumps({"names": names, "cuda": torch.version.cuda, "nccl": nccl}))
"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of a check.

    Attributes:
        subject: that was checked.
        status: `problem`: a part of the pipeline cannot run; `warning`: it runs, but not as tested, or slower than
            possible.
        detail: the result.
        repair: the fix; empty if `ok`.
    """

    subject: str
    status: Literal["ok", "warning", "problem"]
    detail: str
    repair: str = ""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("doctor", __doc__)


def main(argv: Sequence[str]) -> int:
    """Print a table of findings.

    Returns:
        0 without problems (warnings allowed), else 2.

    Raises:
        InputError: the working folder is neither a clone nor a project of `init`.
    """
    make_parser().parse_args(argv)
    project = Path.cwd()
    if not is_pipeline(project):
        raise InputError(
            f"{project}: has no dvc.yaml of this pipeline; cd to the project's folder, or start one: batchsieve init"
        )
    counts: Counter[str] = Counter()
    for finding in examine(project):
        counts[finding.status] += 1
        print(format_finding(finding), flush=True)
    print(f"problems: {counts['problem']}, warnings: {counts['warning']}")
    return 2 if counts["problem"] else 0


def examine(project: Path) -> Iterator[Finding]:
    """Yield all findings; those that explain others come first."""
    version = check_python_version(sys.version_info[:3])
    yield version
    if version.status == "problem":
        return
    # Imported here: these modules need a newer Python, and `packaging` may be missing.
    try:
        from pipeline.commands.doctor.packages import check_packages
    except ModuleNotFoundError as error:
        yield problem(str(error.name), "missing", install_command(project))
        return
    for check in (check_interpreter, check_packages, check_tools, check_machine, check_dvc_files):
        yield from check(project)


def install_command(project: Path) -> str:
    """Return what installs the missing packages of a clone or of another project."""
    return INSTALL if is_clone(project) else INSTALL_PACKAGE


def format_finding(finding: Finding) -> str:
    """Return one line, and the repair on a second line."""
    line = f"{finding.status:8} {finding.subject:13} {finding.detail}"
    return f"{line}\n{'':8} {'':13} -> {finding.repair}" if finding.repair else line


def ok(subject: str, detail: str) -> Finding:
    """Return a finding without a fix."""
    return Finding(subject=subject, status="ok", detail=detail)


def warning(subject: str, detail: str, repair: str) -> Finding:
    """Return a finding with which the pipeline still runs."""
    return Finding(subject=subject, status="warning", detail=detail, repair=repair)


def problem(subject: str, detail: str, repair: str) -> Finding:
    """Return a finding with which a part of the pipeline does not run."""
    return Finding(subject=subject, status="problem", detail=detail, repair=repair)


def check_interpreter(project: Path) -> Iterator[Finding]:
    """Check this process's Python and the one on PATH."""
    if is_clone(project):
        yield check_checkout(_installed_pipeline(), project)
    yield check_python_on_path(_prefix_on_path(), sys.prefix)


def check_python_version(version: tuple[int, int, int]) -> Finding:
    """Check `version` of the running Python."""
    running = ".".join(map(str, version))
    if version[:2] < MINIMUM_PYTHON:
        minimum = ".".join(map(str, MINIMUM_PYTHON))
        return problem("Python", running, f"remove .venv, then: make setup PYTHON=<Python {minimum} or newer>")
    return ok("Python", running)


def check_checkout(installed: Path | None, project: Path) -> Finding:
    """Check that `installed` is this checkout: the package's folder as seen from outside the project, or None."""
    repair = "pip install --no-deps -e ."
    if installed is None:
        return problem("pipeline", "not installed in this Python", repair)
    if installed.resolve() != (project / "pipeline").resolve():
        return problem("pipeline", f"the installed one is another checkout: {installed}", repair)
    return ok("pipeline", "installed from this folder")


def check_python_on_path(prefix: str | None, running: str) -> Finding:
    """Check `prefix`, sys.prefix of the `python` on PATH, which the commands of dvc.yaml start; None without one."""
    if prefix == running:
        return ok("PATH", f"python is in {running}")
    return warning(
        "PATH",
        f"python is {f'in {prefix}' if prefix else 'missing'}, and `dvc repro` would start it",
        f"export PATH={running}/bin:$PATH (in a clone make does it)",
    )


def _installed_pipeline() -> Path | None:
    # -P leaves the working directory out, in which every checkout would find itself.
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


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs that torch sees.

    Attributes:
        names: of the GPUs.
        cuda: version that torch was built for; None for a CPU build.
        nccl: whether torch can connect them.
    """

    names: tuple[str, ...]
    cuda: str | None
    nccl: bool


def check_machine(project: Path) -> Iterator[Finding]:
    """Check the hardware and the limits of the container."""
    yield check_cores(len(os.sched_getaffinity(0)), cpu_quota(Path("/sys/fs/cgroup/cpu.max")))
    gpus = _probe_torch()
    if gpus is not None:
        yield check_gpus(gpus, driver=Path("/dev/nvidia0").exists())
    yield check_shared_memory(_size(Path("/dev/shm")), gpus=len(gpus.names) if gpus else 0)
    yield check_disk(shutil.disk_usage(project).free)
    yield check_writable(project / "data")


def check_cores(cores: int, quota: float | None) -> Finding:
    """Check that `quota`, the CPUs that the container may use at a time, covers the cores; None sets no limit."""
    if quota is not None and quota < cores:
        share = max(1, int(quota))
        return warning(
            "cores",
            f"{cores}, of which this container may use {quota:g} at a time",
            f"set threads_per_worker: {share} in params.yaml (finetune and train): more threads slow each other down",
        )
    return ok("cores", str(cores))


def cpu_quota(path: Path) -> float | None:
    """Return the CPUs that a control group (v2) allows; None without a group or a limit."""
    try:
        quota, period = path.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def check_gpus(gpus: Gpus, *, driver: bool) -> Finding:
    """Check that torch can use the GPUs; `driver`: whether an NVIDIA driver runs on this machine."""
    if gpus.names:
        listed = ", ".join(gpus.names)
        if len(gpus.names) > 1 and not gpus.nccl:
            return problem(
                "GPUs", f"{listed}; torch has no NCCL to connect them", "pip install --force-reinstall torch"
            )
        return ok("GPUs", f"{listed} (CUDA {gpus.cuda})")
    if driver and gpus.cuda is None:
        repair = "pip install --force-reinstall torch torchvision"
        return problem("GPUs", "the machine has a GPU, but this torch is a build for CPUs only", repair)
    if driver:
        repair = f"update the NVIDIA driver to one for CUDA {gpus.cuda}, or install a torch built for the driver"
        return problem("GPUs", f"the machine has a GPU, but torch (built for CUDA {gpus.cuda}) cannot use it", repair)
    return ok("GPUs", "none; training runs on the CPU")


def check_shared_memory(size: float | None, *, gpus: int) -> Finding:
    """Check `size`, the bytes of /dev/shm, by which NCCL connects GPUs; None without it."""
    detail = "missing" if size is None else f"{size / 1e9:.1f} GB"
    if gpus > 1 and (size is None or size < _RECOMMENDED_SHARED_MEMORY):
        return warning("/dev/shm", f"{detail} for {gpus} GPUs", "start the container with --shm-size=4g")
    return ok("/dev/shm", detail)


def check_disk(free: float) -> Finding:
    """Check `free`, the free bytes on the project's disk."""
    detail = f"{free / 1e9:.1f} GB free"
    if free < _MINIMUM_DISK:
        return problem("disk", detail, "free some space: features and DVC's cache need it")
    if free < _RECOMMENDED_DISK:
        return warning("disk", detail, "compare with the disk that `python -m pipeline plan` prints")
    return ok("disk", detail)


def check_writable(folder: Path) -> Finding:
    """Check that a file can be written in `folder`; creates a missing folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return problem(str(folder.name), f"cannot be written: {error.strerror}", f"make {folder} writable")
    return ok(str(folder.name), "writable")


def _size(folder: Path) -> float | None:
    return float(shutil.disk_usage(folder).total) if folder.is_dir() else None


def _probe_torch() -> Gpus | None:
    """Return None if torch cannot be imported; `check_packages` says why."""
    command = [sys.executable, "-W", "ignore", "-c", _TORCH_PROBE]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if answer.returncode:
        return None
    facts = json.loads(answer.stdout.splitlines()[-1])
    return Gpus(names=tuple(facts["names"]), cuda=facts["cuda"], nccl=facts["nccl"])


def check_tools(project: Path) -> Iterator[Finding]:
    """Check git, the repository and DVC."""
    git = _run(["git", "--version"], project)
    repository = _run(["git", "rev-parse", "--is-inside-work-tree"], project) is not None
    yield check_git(git, repository=repository)
    executable = Path(sys.executable).with_name("dvc")
    command = str(executable) if executable.exists() else "dvc"
    version = _run([command, "--version"], project)
    # `init` uses the .dvc of a repository around the project.
    folders = [project] if is_clone(project) else [project, *project.parents]
    initialized = any((folder / ".dvc").is_dir() for folder in folders)
    yield check_dvc(version, initialized=initialized, install=install_command(project))


def check_dvc_files(project: Path) -> Iterator[Finding]:
    """Repair the files of a killed DVC and yield what was done; nothing without DVC, which `check_tools` reports."""
    if find_spec("dvc") is None:
        return
    # Imported here: it needs a newer Python.
    from pipeline.commands.repair import repair_dvc_files
    from pipeline.paths import WorkPaths

    try:
        repairs = repair_dvc_files(project, WorkPaths())
    except InputError as error:
        yield problem("DVC's files", str(error), "then run this command again")
        return
    if not repairs:
        yield ok("DVC's files", "complete")
    for repair in repairs:
        yield ok("DVC's files", f"{repair.file}: {repair.done}")


def check_git(version: str | None, *, repository: bool) -> Finding:
    """Check `version`, the output of `git --version`; None if it does not run."""
    if version is None:
        return problem("git", "missing, and DVC needs it", "install git with the system's package manager")
    if not repository:
        return problem("git", "this folder is not in a git repository, and DVC needs one", "git clone it, or: git init")
    return ok("git", version.removeprefix("git version "))


def check_dvc(version: str | None, *, initialized: bool, install: str) -> Finding:
    """Check `version`, the output of `dvc --version`; None if it does not run."""
    if version is None:
        repair = f"{install}; if it is installed: pip install --force-reinstall dvc"
        return problem("dvc", "missing or does not start", repair)
    if not initialized:
        return problem("dvc", "this folder has no .dvc", "git checkout .dvc, or: dvc init")
    return ok("dvc", version)


def _run(command: list[str], folder: Path) -> str | None:
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
