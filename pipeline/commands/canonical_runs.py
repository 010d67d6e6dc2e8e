"""`python -m pipeline canonical-runs`: whether the training code computes what listed versions of it compute.

It trains nine small networks for 20 steps each on one CPU thread, half a minute in all, and compares their hashes with
`pipeline/training/canonical_runs.json`. Runs under listed digests whose hashes are equal count as one. With --record it
adds this code to the list, to the family with its hashes or as a new one; commit the list with the code.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pipeline import distributed
from pipeline.commands import command_parser
from pipeline.errors import InputError
from pipeline.training.canonical_runs import canonical_hashes
from pipeline.training.code_families import (
    FAMILIES_FILE,
    Family,
    Hashes,
    add_to_families,
    read_families,
    write_families,
)
from pipeline.training.run_key import machine_info, training_code_digest

_PROJECT = Path(__file__).resolve().parents[2]
# Of a family the newest code is the nearest to today's, and a list of digests may be long.
_MAX_TRIES = 3
_TIMEOUT_S = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanonicalHashes:
    """What a version of the training code gives on this machine."""

    code: str
    machine: dict[str, Any]
    hashes: dict[str, str]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("canonical-runs", __doc__)
    parser.add_argument("--record", action="store_true", help="write the list")
    parser.add_argument("--json", action="store_true", help="print digest, machine and hashes, and compare nothing")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the canonical jobs and compare them with the list, or add them to it."""
    arguments = make_parser().parse_args(argv)
    with distributed.join_process_group(1):
        found = run_local()
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found)))
        return 0
    families = read_families()
    changed, line = add_to_families(
        families, found.code, found.machine, found.hashes, run_family=lambda family: earlier_hashes(family, found)
    )
    print(line)
    if changed == families:
        return 0
    if not arguments.record:
        print(f"{FAMILIES_FILE.name} does not have this; add --record to write it")
        return 1
    write_families(changed)
    return 0


def run_local() -> CanonicalHashes:
    """Of the code and the machine of this process."""
    return CanonicalHashes(
        code=training_code_digest(), machine=machine_info(torch.device("cpu")), hashes=canonical_hashes()
    )


def earlier_hashes(family: Family, here: CanonicalHashes, project: Path = _PROJECT) -> Hashes | None:
    """The hashes that another member of a family gives on this machine, with its code as git has it.

    Returns:
        None where git's history has no other member.

    Raises:
        InputError: the earlier code runs and fails.
    """
    others = [member for member in reversed(family.members) if member != here.code]
    for member in others[:_MAX_TRIES]:
        for commit in _commits_that_list(member, project):
            outcome = _run_commit(commit, project)
            if outcome is not None and outcome.code == member and outcome.machine == here.machine:
                return outcome.hashes
    return None


def _commits_that_list(digest: str, project: Path) -> Iterator[str]:
    """The commits that brought a digest into the list; the code of such a commit is the digest's own.

    By the content, not by a recorded name, which a rebase would change.
    """
    listed = str(FAMILIES_FILE.relative_to(_PROJECT))
    found = _git(project, "log", "--format=%H", "-m", f"-S{digest}", "--", listed)
    yield from dict.fromkeys(found.split() if found else [])


def _run_commit(commit: str, project: Path) -> CanonicalHashes | None:
    """Its canonical runs, in a process of this interpreter; None where the commit has none."""
    with TemporaryDirectory() as folder:
        archive = Path(folder, "code.tar")
        if _git(project, "archive", f"--output={archive}", commit, "pipeline", "viz") is None:
            return None
        subprocess.run(["tar", "xf", archive.name], cwd=folder, check=True)
        command = [sys.executable, "-m", "pipeline", "canonical-runs", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise InputError(
            f"{commit[:12]}: its canonical runs fail here ({done.stderr.strip()[-200:]}); check the environment"
        )
    return CanonicalHashes(**json.loads(done.stdout))


def _git(project: Path, *arguments: str) -> str | None:
    """What git prints; None where there is no git, no repository, or no such thing in it."""
    try:
        done = subprocess.run(["git", *arguments], cwd=project, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
