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


def write_project(folder: Path, params: str, *, ignored: Sequence[str], copies: Mapping[Path, Path]) -> list[str]:
    """Write the files that the project lacks; returns their names.

    params.yaml comes last: without it `init` starts again, as after a kill.

    Args:
        folder: with dvc.yaml of this pipeline, which stays; or without, and then it gets one.
        params: content of params.yaml without the line for editors.
        ignored: lines of .gitignore, in addition to those of every project.
        copies: source by target.
    """
    written = ["params.yaml"]
    schema = "presets/params.schema.json" if (folder / "presets" / SCHEMA).is_file() else SCHEMA
    if schema == SCHEMA:
        write_json(folder / SCHEMA, params_schema())
        written.append(SCHEMA)
    if not is_pipeline(folder):
        root = packaged_path("dvc.yaml").read_text(encoding="utf-8")
        write_text(folder / "dvc.yaml", project_dvc_yaml(root))
        written.append("dvc.yaml")
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
    write_text(folder / "params.yaml", f"# yaml-language-server: $schema={schema}\n{params}")
    return written


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

    Raises:
        MachineError: git or DVC fails.
    """
    top = git_output(folder, "rev-parse", "--show-toplevel")
    if top is None:
        _run(["git", "init", "--quiet"], folder)
        yield "git: repository initialized"
    if any((parent / ".dvc").is_dir() for parent in (folder, *folder.parents)):
        return
    inside = top is not None and Path(os.fsdecode(top).removesuffix("\n")).resolve() != folder.resolve()
    _run([sys.executable, "-m", "dvc", "init", "--quiet", *(["--subdir"] if inside else [])], folder)
    write_text(folder / ".dvc" / "config", _DVC_CONFIG)
    yield "dvc: initialized, without analytics"


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        name = "git" if command[0] == "git" else "dvc"
        reason = " ".join(done.stderr.split())[-300:]
        raise MachineError(f"{name} init: {reason}; correct it and run the command again")
