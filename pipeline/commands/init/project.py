"""Files of a project outside a clone, its git repository and its DVC folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from pipeline.artifacts.files import atomic_path, write_bytes, write_json, write_text
from pipeline.commands import is_pipeline, packaged_path
from pipeline.commands.code_digests import project_dvc_yaml
from pipeline.commands.schema import params_schema
from pipeline.errors import InputError, MachineError
from pipeline.processes import git_output

SCHEMA = "params.schema.json"
_OVERRIDES = "path,sha256,decision,label,note,timestamp\n"
_DATA_GITIGNORE = "# Stage outputs belong to DVC; human decisions belong to git.\n*\n!.gitignore\n!overrides.csv\n"
_DVCIGNORE = ("__pycache__", "*.pyc", "*.tmp")
_DVC_CONFIG = "[core]\n    analytics = false\n    check_update = false\n    autostage = true\n"


def check_tools() -> None:
    """Check that git and DVC are installed.

    Raises:
        MachineError: one is missing.
    """
    if shutil.which("git") is None:
        raise MachineError("git: missing, and DVC needs it; install git with the system's package manager")
    if find_spec("dvc") is None:
        raise MachineError("dvc: not installed in this Python; run `pip install 'batchsieve[stages]'`")


def check_new(paths: Sequence[Path], *, force: bool) -> None:
    """Check that no file would be overwritten.

    Raises:
        InputError: a file exists, and `force` is False.
    """
    existing = [path for path in paths if path.exists()]
    if existing and not force:
        raise InputError(f"{existing[0]}: exists; add --force to overwrite it, or run the command in another folder")


def write_project(folder: Path, *, ignored: Sequence[str], copies: Mapping[Path, Path]) -> list[str]:
    """Write the files that the project lacks, without params.yaml; returns their names.

    Args:
        folder: with dvc.yaml of this pipeline, which stays; or without, and then it gets one.
        ignored: lines of .gitignore, in addition to those of every project.
        copies: source by target.
    """
    written = []
    # First: next to it, `init` replaces the other files of a run that was killed.
    if not is_pipeline(folder):
        root = packaged_path("dvc.yaml").read_text(encoding="utf-8")
        write_text(folder / "dvc.yaml", project_dvc_yaml(root))
        written.append("dvc.yaml")
    if _schema(folder) == SCHEMA:
        write_json(folder / SCHEMA, params_schema())
        written.append(SCHEMA)
    for name, content in (("data/overrides.csv", _OVERRIDES), ("data/.gitignore", _DATA_GITIGNORE)):
        if not (folder / name).exists():
            write_text(folder / name, content)
            written.append(name)
    for target, source in copies.items():
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
        written.append(str(target.relative_to(folder)))
    written += _with_lines(folder / ".gitignore", ["/.work/", "/.params.yaml.lock", "__pycache__/", *ignored])
    written += _with_lines(folder / ".dvcignore", _DVCIGNORE)
    return written


def write_params(folder: Path, params: str) -> str:
    """Write params.yaml, and return its name.

    It is the last file of a project: without it `init` starts again, as after a kill or an error of git or DVC.

    Args:
        params: its content without the line for editors.
    """
    write_text(folder / "params.yaml", f"# yaml-language-server: $schema={_schema(folder)}\n{params}")
    return "params.yaml"


def _schema(folder: Path) -> str:
    return "presets/params.schema.json" if (folder / "presets" / SCHEMA).is_file() else SCHEMA


def _with_lines(path: Path, lines: Sequence[str]) -> list[str]:
    """Add the missing lines to a file, which keeps its own; returns its name if it changed."""
    # In bytes: the file may have another encoding, or line ends of Windows.
    before = path.read_bytes() if path.exists() else b""
    missing = [line.encode() for line in lines if line.encode() not in before.splitlines()]
    if not missing:
        return []
    separator = b"" if not before or before.endswith(b"\n") else b"\n"
    write_bytes(path, before + separator + b"".join(line + b"\n" for line in missing))
    return [path.name]


def start_repositories(folder: Path) -> Iterator[str]:
    """Initialize git and DVC in `folder` unless it is within a repository; yields what was done.

    A `.dvc` in `folder` without a setting or a cached file is initialized again.

    Raises:
        MachineError: git or DVC fails.
    """
    top = git_output(folder, "rev-parse", "--show-toplevel")
    if top is None:
        _run(["git", "init", "--quiet"], folder)
        yield "git: repository initialized"
    own = folder / ".dvc"
    if _has_content(own) if own.is_dir() else any((parent / ".dvc").is_dir() for parent in folder.parents):
        return
    inside = top is not None and Path(os.fsdecode(top).removesuffix("\n")).resolve() != folder.resolve()
    # An earlier `init` may have ended while DVC made the folder.
    options = [*(["--subdir"] if inside else []), *(["--force"] if own.is_dir() else [])]
    _run([sys.executable, "-m", "dvc", "init", "--quiet", *options], folder)
    write_text(folder / ".dvc" / "config", _DVC_CONFIG)
    yield "dvc: initialized, without analytics"


def _has_content(dvc_folder: Path) -> bool:
    """Return whether there is a setting or a cached file in a `.dvc`, all of which `dvc init --force` removes."""
    made = (dvc_folder / ".gitignore", dvc_folder / "tmp")
    files = (path for part in dvc_folder.iterdir() if part not in made for path in (part, *part.rglob("*")))
    return any(path.is_symlink() or (path.is_file() and path.stat().st_size > 0) for path in files)


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        name = "git" if command[0] == "git" else "dvc"
        reason = " ".join(done.stderr.split())[-300:]
        raise MachineError(f"{name} init: {reason}; correct it and run the command again")
