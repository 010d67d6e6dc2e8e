"""`python -m pipeline canonical-runs`: check that the training code computes the same bits as listed versions of it.

Trains networks on small images for up to 20 steps each on one CPU thread, one or two minutes in total. Compares their
hashes with `pipeline/training/canonical_runs.json`. Versions with equal hashes form a code family, whose finished runs
stay valid. --record adds this code to the family with its hashes, or to a new one; commit the list with the code.

With --isa, on a processor that is not in the list, it says whether this processor gives the bits that are recorded
with the same instructions.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pipeline import distributed
from pipeline.commands import command_parser
from pipeline.errors import InputError
from pipeline.instruction_set import limit_instructions
from pipeline.processes import git_output
from pipeline.run_log import RunLog, stderr_log
from pipeline.training.canonical_runs import canonical_hashes
from pipeline.training.code_families import (
    FAMILIES_FILE,
    Family,
    Hashes,
    add_to_families,
    find_family,
    read_families,
    write_families,
)
from pipeline.training.run_key import machine_info, training_code_digest

_PROJECT = Path(__file__).resolve().parents[2]
# The newest members of a family are the most similar to the current code; a family may have many.
_MAX_TRIES = 3
_TIMEOUT_S = 600
_LACKS = f"{FAMILIES_FILE.name}: lacks this code, this machine or a job; add --record to write it"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanonicalHashes:
    """Hashes of a version of the training code on this machine."""

    code: str
    machine: dict[str, Any]
    hashes: dict[str, str]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("canonical-runs", __doc__)
    parser.add_argument("--record", action="store_true", help="write the list")
    parser.add_argument(
        "--isa", choices=["avx2"], help="limit the CPU instructions, as `train.isa` does (default: no limit)"
    )
    parser.add_argument("--json", action="store_true", help="only print digest, machine and hashes")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the canonical runs, and compare them with the list or add them to it.

    Returns:
        0; 1 if the list lacks this code, this machine or a job, and --record is not set.

    Raises:
        InputError: the list is damaged, the code of an earlier member fails, or the processor lacks the instructions.
    """
    arguments = make_parser().parse_args(argv)
    limit_instructions(arguments.isa)
    with distributed.join_process_group(1):
        local = run_local(RunLog.silent() if arguments.json else stderr_log(None))
    if arguments.json:
        print(json.dumps(dataclasses.asdict(local)))
        return 0
    families = read_families()
    family = find_family(local.code, families)
    # The bits of code that is not listed say nothing about the processor.
    if arguments.isa and family and family.hashes_on(local.machine) is None:
        print(processor_verdict(family, local))
        if not arguments.record:
            print(_LACKS)
            return 1
    changed, line = add_to_families(
        families, local.code, local.machine, local.hashes, run_family=lambda family: earlier_hashes(family, local)
    )
    print(line)
    if changed == families:
        return 0
    if not arguments.record:
        print(_LACKS)
        return 1
    write_families(changed)
    return 0


def run_local(log: RunLog) -> CanonicalHashes:
    """Return the hashes of this code on this machine; `log` shows the progress."""
    return CanonicalHashes(
        code=training_code_digest(), machine=machine_info(torch.device("cpu")), hashes=canonical_hashes(log)
    )


def processor_verdict(family: Family, local: CanonicalHashes) -> str:
    """Return a line: whether this processor gives the bits that others gave with the same instructions and versions.

    Of several records that with the most equal hashes counts, since a record does not name the setting of MKL.

    Args:
        family: it lists the code.
    """
    listed = [record.hashes for record in family.records if _is_same_kind(record.machine, local.machine)]
    common = [(hashes, hashes.keys() & local.hashes.keys()) for hashes in listed]
    counts = [(sum(hashes[name] == local.hashes[name] for name in names), len(names)) for hashes, names in common]
    equal, n = max(counts, default=(0, 0))
    if n == 0:
        versions = ", ".join(f"{name} {version}" for name, version in local.machine.items() if name != "arithmetic")
        return f"no hashes are recorded with these instructions and versions ({versions})"
    if equal == n:
        return f"this processor gives the recorded bits: {n} hashes are equal"
    return f"this processor does not give the recorded bits: {n - equal} of {n} hashes differ"


def _is_same_kind(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two machines have the same versions and vector instructions, whatever their arithmetic."""
    return {**one, "arithmetic": None} == {**other, "arithmetic": None}


def earlier_hashes(family: Family, local: CanonicalHashes, project: Path = _PROJECT) -> Hashes | None:
    """Run another member of a family from git's history, and return its hashes on this machine.

    Returns:
        None if git's history has no other member.

    Raises:
        InputError: the earlier code fails.
    """
    others = [member for member in reversed(family.members) if member != local.code]
    for member in others[:_MAX_TRIES]:
        for commit in _commits_that_list(member, project):
            outcome = _run_commit(commit, project)
            if outcome is not None and outcome.code == member and outcome.machine == local.machine:
                return outcome.hashes
    return None


def _commits_that_list(digest: str, project: Path) -> Iterator[str]:
    """Yield the commits that added a digest to the list, whose code has this digest.

    Searches by content, since a rebase would change recorded commits.
    """
    listed = str(FAMILIES_FILE.relative_to(_PROJECT))
    commits = git_output(project, "log", "--format=%H", "-m", f"-S{digest}", "--", listed)
    yield from dict.fromkeys(commits.decode().split() if commits else [])


def _run_commit(commit: str, project: Path) -> CanonicalHashes | None:
    """Return the hashes of a commit's code, run in a new process; None if git lacks the commit."""
    with TemporaryDirectory() as folder:
        archive = Path(folder, "code.tar")
        if git_output(project, "archive", f"--output={archive}", commit, "pipeline", "viz") is None:
            return None
        subprocess.run(["tar", "xf", archive.name], cwd=folder, check=True)
        command = [sys.executable, "-m", "pipeline", "canonical-runs", "--json"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"{commit[:12]}: its canonical runs take over {_TIMEOUT_S:g} s here; end other programs"
            ) from None
    if done.returncode != 0:
        raise InputError(
            f"{commit[:12]}: its canonical runs fail here ({done.stderr.strip()[-200:]}); check the environment"
        )
    return CanonicalHashes(**json.loads(done.stdout))
