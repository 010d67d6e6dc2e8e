"""Cores, GPUs, shared memory and disk."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.commands.checks.finding import Finding, ok, problem, warning

_LITTLE_DISK = 10e9
_NO_DISK = 1e9
_LITTLE_SHARED_MEMORY = 1e9

_ASK_TORCH = """
import json, torch
count = torch.cuda.device_count()
names = [torch.cuda.get_device_name(index) for index in range(count)]
nccl = torch.cuda.nccl.is_available([]) if count else False
print(json.dumps({"names": names, "cuda": torch.version.cuda, "nccl": nccl}))
"""


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """What torch says of the GPUs; `cuda` is the version it was built for, None for a CPU build."""

    names: tuple[str, ...]
    cuda: str | None
    nccl: bool


def check_machine(project: Path) -> Iterator[Finding]:
    """The findings about the hardware and what the container leaves of it."""
    yield judge_cores(len(os.sched_getaffinity(0)), cpu_quota(Path("/sys/fs/cgroup/cpu.max")))
    gpus = _ask_torch()
    if gpus is not None:
        yield judge_gpus(gpus, driver=Path("/dev/nvidia0").exists())
    yield judge_shared_memory(_size(Path("/dev/shm")), gpus=len(gpus.names) if gpus else 0)
    yield judge_disk(shutil.disk_usage(project).free)
    yield judge_writable(project / "data")


def judge_cores(cores: int, quota: float | None) -> Finding:
    """`quota`: CPUs that the container may use at a time; None if there is no limit."""
    if quota is not None and quota < cores:
        share = max(1, int(quota))
        return warning(
            "cores",
            f"{cores}, of which this container may use {quota:g} at a time",
            f"set threads_per_worker: {share} in params.yaml (finetune and train): more threads slow each other down",
        )
    return ok("cores", str(cores))


def cpu_quota(path: Path) -> float | None:
    """CPUs that a control group (v2) allows; None if it sets no limit or there is none."""
    try:
        quota, period = path.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def judge_gpus(gpus: Gpus, *, driver: bool) -> Finding:
    """`driver`: whether an NVIDIA driver runs on this machine."""
    if gpus.names:
        listed = ", ".join(gpus.names)
        if len(gpus.names) > 1 and not gpus.nccl:
            return problem(
                "GPUs", f"{listed}; torch has no NCCL to connect them", "pip install --force-reinstall torch"
            )
        return ok("GPUs", f"{listed} (CUDA {gpus.cuda})")
    if driver and gpus.cuda is None:
        repair = "pip install --force-reinstall torch torchvision"
        return problem("GPUs", "there is one, but this torch is a build for CPUs only", repair)
    if driver:
        repair = f"update the NVIDIA driver to one for CUDA {gpus.cuda}, or install a torch built for the driver"
        return problem("GPUs", f"there is one, but torch (built for CUDA {gpus.cuda}) cannot use it", repair)
    return ok("GPUs", "none; training runs on the CPU")


def judge_shared_memory(size: float | None, *, gpus: int) -> Finding:
    """`size`: bytes of /dev/shm, by which NCCL connects GPUs; None if there is none."""
    found = "missing" if size is None else f"{size / 1e9:.1f} GB"
    if gpus > 1 and (size is None or size < _LITTLE_SHARED_MEMORY):
        return warning("/dev/shm", f"{found} for {gpus} GPUs", "start the container with --shm-size=4g")
    return ok("/dev/shm", found)


def judge_disk(free: float) -> Finding:
    """`free`: bytes on the project's disk."""
    found = f"{free / 1e9:.1f} GB free"
    if free < _NO_DISK:
        return problem("disk", found, "free some space: features and DVC's cache need it")
    if free < _LITTLE_DISK:
        return warning("disk", found, "compare with what `python -m pipeline plan` says")
    return ok("disk", found)


def judge_writable(folder: Path) -> Finding:
    """Whether a file can be made in `folder`, which is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return problem(str(folder.name), f"cannot be written: {error.strerror}", f"make {folder} writable for you")
    return ok(str(folder.name), "writable")


def _size(folder: Path) -> float | None:
    return float(shutil.disk_usage(folder).total) if folder.is_dir() else None


def _ask_torch() -> Gpus | None:
    """None where torch cannot be imported; the packages' findings say why."""
    command = [sys.executable, "-W", "ignore", "-c", _ASK_TORCH]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if answer.returncode:
        return None
    facts = json.loads(answer.stdout.splitlines()[-1])
    return Gpus(names=tuple(facts["names"]), cuda=facts["cuda"], nccl=facts["nccl"])
