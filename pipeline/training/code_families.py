"""Families of training code that compute the same bits, listed in `canonical_runs.json`.

The members of a family are digests of training code. The first one names the family. For each kind of machine, the
family has the hashes of `canonical_runs` there, which are equal for all members.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import write_text
from pipeline.errors import InputError

FAMILIES_FILE = Path(__file__).with_name("canonical_runs.json")
COMMAND = "python -m pipeline canonical-runs --record"
_PRECISIONS = ("fp32", "bf16")  # the others are of GPUs
_EXTERNAL_NETWORKS = ("timm/", "torchvision/")  # prefixes of networks that no canonical job has

Hashes = Mapping[str, str]
"""Name of a job -> its hash."""


@dataclass(frozen=True, kw_only=True)
class MachineHashes:
    """The hashes that every member of a family gives on one kind of machine, see `run_key.machine_info`."""

    machine: Mapping[str, Any]
    hashes: Hashes


@dataclass(frozen=True, kw_only=True)
class Family:
    """Digests of training code that give equal hashes, oldest first."""

    members: tuple[str, ...]
    records: tuple[MachineHashes, ...]

    @property
    def name(self) -> str:
        return self.members[0]

    def hashes_on(self, machine: Mapping[str, Any]) -> Hashes | None:
        """Return the hashes on a machine; None if no member was run on such a machine."""
        return next((record.hashes for record in self.records if record.machine == machine), None)


def read_families(path: Path = FAMILIES_FILE) -> list[Family]:
    """Read the families, oldest first; none if there is no file.

    Raises:
        InputError: the file is damaged, or has a digest twice.
    """
    if not path.exists():
        return []
    try:
        families = [
            Family(
                members=tuple(entry["members"]), records=tuple(MachineHashes(**record) for record in entry["records"])
            )
            for entry in json.loads(path.read_text(encoding="utf-8"))["families"]
        ]  # fmt: skip
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path}: not a list of families; restore it: git checkout {path.name}") from None
    members = [member for family in families for member in family.members]
    if len(set(members)) < len(members) or not all(family.members for family in families):
        raise InputError(f"{path}: has a digest twice, or a family without members; leave each digest in one family")
    return families


def write_families(families: Sequence[Family], path: Path = FAMILIES_FILE) -> None:
    """Write the list, atomically; a digest and a machine are a line each."""
    entries = ",\n".join(_as_text(family) for family in families)
    write_text(path, f'{{"families": [\n{entries}\n]}}\n')


def _as_text(family: Family) -> str:
    members = ",\n".join(f"    {json.dumps(member)}" for member in family.members)
    records = ",\n".join(
        f'    {{"machine": {json.dumps(dict(record.machine), sort_keys=True)},\n'
        f'     "hashes": {json.dumps(dict(record.hashes), sort_keys=True)}}}'
        for record in family.records
    )
    return f'  {{"members": [\n{members}\n   ], "records": [\n{records}\n   ]}}'


def find_family(code: str, families: Sequence[Family]) -> Family | None:
    """Return the family that lists a digest."""
    return next((family for family in families if code in family.members), None)


def canonical_runs_cover(settings: Mapping[str, Any]) -> bool:
    """Return whether the canonical runs would show a change of what a run computes.

    They contain no compiled code, no compressed gradients, no precisions or kernels of GPUs, and no networks of timm
    or torchvision but the ResNets.

    Args:
        settings: the items of `TrainSettings`.
    """
    plain = not settings.get("compile") and not settings.get("fast") and settings.get("compression") == "none"
    own = not str(settings.get("network")).startswith(_EXTERNAL_NETWORKS)
    return plain and own and settings.get("precision") in _PRECISIONS


def code_name(code: str, settings: Mapping[str, Any]) -> str:
    """Return the code part of a run's key: the name of the digest's family, or the digest itself.

    Args:
        settings: the items of `TrainSettings`.
    """
    family = find_family(code, _listed()) if canonical_runs_cover(settings) else None
    return family.name if family else code


@cache
def _listed() -> tuple[Family, ...]:
    return tuple(read_families())


def add_to_families(
    families: Sequence[Family],
    code: str,
    machine: Mapping[str, Any],
    hashes: Hashes,
    *,
    run_family: Callable[[Family], Hashes | None],
) -> tuple[list[Family], str]:
    """Add the hashes that training code gives on a machine to the list.

    Args:
        code: digest of the training code.
        run_family: returns the hashes of a family's earlier code on this machine; None if it is unavailable.

    Returns:
        The families, and one line that says where the code was added.

    Raises:
        InputError: the list has other hashes for the code; or there is nothing to compare them with.
    """
    current = find_family(code, families)
    if current is not None:
        listed = current.hashes_on(machine)
        if listed is None and len(current.members) > 1:
            listed = _historical_hashes(current, run_family)
        _check_listed(code, hashes, listed or hashes)
        line = f"{code[:12]} is listed in family {current.name[:12]}; its "
        recorded = current.hashes_on(machine)
        line += (
            _counted(recorded, hashes, "as recorded")
            if recorded
            else f"{len(hashes)} hashes are now recorded for this machine"
        )
        return _replaced(families, current, _with_record(current, machine, hashes)), line
    same = next((family for family in families if _equal(family.hashes_on(machine), hashes)), None)
    compared = same.hashes_on(machine) if same else None
    if same is None and families and not any(family.hashes_on(machine) for family in families):
        compared = _historical_hashes(families[-1], run_family)
        same = families[-1] if _equal(compared, hashes) else None
    if same is not None and compared is not None:
        line = f"{code[:12]} joins family {same.name[:12]}: its {_counted(compared, hashes, 'equal')}; runs stay valid"
        joined = _with_record(replace(same, members=(*same.members, code)), machine, hashes)
        return _replaced(families, same, joined), line
    new_family = Family(members=(code,), records=(MachineHashes(machine=machine, hashes=hashes),))
    return [*families, new_family], f"{code[:12]} begins a new family{_changes(families, machine, hashes)}"


def _counted(listed: Hashes, hashes: Hashes, equal: str) -> str:
    """Say how many hashes are equal, and how many are of jobs that the list lacks."""
    n = len(listed.keys() & hashes.keys())
    return f"{n} hashes are {equal}" + (f", and {len(hashes) - n} are of new jobs" if n < len(hashes) else "")


def _check_listed(code: str, hashes: Hashes, listed: Hashes) -> None:
    if not _equal(listed, hashes):
        raise InputError(
            f"{FAMILIES_FILE.name}: lists {code[:12]} with other hashes of {', '.join(_unequal(listed, hashes))}; "
            f"remove the digest from the list and run: {COMMAND}"
        )


def _historical_hashes(family: Family, run_family: Callable[[Family], Hashes | None]) -> Hashes:
    hashes = run_family(family)
    if hashes is None:
        raise InputError(
            f"{FAMILIES_FILE.name}: family {family.name[:12]} has no hashes of this machine, and its code is not in "
            "git's history here; run the same command in a full clone, or on a machine that is listed"
        )
    return hashes


def _with_record(family: Family, machine: Mapping[str, Any], hashes: Hashes) -> Family:
    if family.hashes_on(machine) == hashes:
        return family
    others = tuple(record for record in family.records if record.machine != machine)
    return replace(family, records=(*others, MachineHashes(machine=machine, hashes=hashes)))


def _replaced(families: Sequence[Family], old: Family, new: Family) -> list[Family]:
    return [new if family is old else family for family in families]


def _equal(listed: Hashes | None, hashes: Hashes) -> bool:
    """Compare the jobs that both have; an older list lacks newer jobs."""
    return listed is not None and bool(listed.keys() & hashes.keys()) and not _unequal(listed, hashes)


def _unequal(listed: Hashes, hashes: Hashes) -> list[str]:
    return sorted(name for name in listed.keys() & hashes.keys() if listed[name] != hashes[name])


def _changes(families: Sequence[Family], machine: Mapping[str, Any], hashes: Hashes) -> str:
    """Describe the jobs that differ from the newest family that was run on this machine."""
    listed = [recorded for family in families if (recorded := family.hashes_on(machine))]
    if not listed:
        return ""
    differ = _unequal(listed[-1], hashes)
    return f": {len(differ)} of {len(hashes)} hashes differ ({', '.join(differ)}); earlier runs are trained again"
