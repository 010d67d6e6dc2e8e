"""Registered plans of studies: one immutable file for each registration."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import remove_leftovers, write_json
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.config.study_plan import plan_hash
from pipeline.errors import InputError

_RUNS = "runs.json"
_MAX_BYTES = 1_000_000
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class RegisteredPlan:
    """A plan and the date of its registration.

    Attributes:
        date: UTC, as `2026-11-23T18:45:12.000000Z`.
        plan: values from `pipeline.config.study_plan.build_plan`.
    """

    date: str
    plan: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        return plan_hash(self.plan)


def utc_timestamp(now: datetime) -> str:
    """Format a date in UTC to the microsecond; these texts sort by date.

    Args:
        now: with a time zone.
    """
    assert now.utcoffset() is not None
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def register_plan(folder: Path, plan: Mapping[str, Any], now: datetime) -> bool:
    """Register `plan` in the folder of a study, if it differs from the newest; returns whether it does.

    Raises:
        InputError: a registered plan is damaged.
    """
    remove_leftovers(folder)
    earlier = read_registered_plans(folder)
    digest = plan_hash(plan)
    if earlier and earlier[-1].sha256 == digest:
        return False
    _write_plan(folder, RegisteredPlan(date=utc_timestamp(now), plan=plan))
    return True


def _write_plan(folder: Path, registered: RegisteredPlan) -> bool:
    """Write a plan under the name of its date and hash, unless it is there; returns whether it was new."""
    path = folder / f"{registered.date.replace(':', '')}-{registered.sha256[:12]}.json"
    if path.exists():
        return False
    write_json(path, {"date": registered.date, "plan": registered.plan, "sha256": registered.sha256})
    return True


def read_registered_plans(folder: Path) -> list[RegisteredPlan]:
    """Read all registered plans of a study, the oldest first.

    Raises:
        InputError: a plan is damaged, or does not match its hash.
    """
    plans = []
    for path in sorted(folder.glob("2*.json")):
        record = read_untrusted_json(path, max_bytes=_MAX_BYTES)
        try:
            registered = RegisteredPlan(date=record["date"], plan=record["plan"])
            valid = isinstance(registered.plan, dict) and registered.sha256 == record["sha256"]
            valid = valid and _DATE.fullmatch(registered.date) is not None
        except (TypeError, KeyError, AttributeError, ValueError):
            valid = False
        if not valid:
            raise InputError(f"{path}: damaged plan, or changed by hand; restore the file from a copy")
        plans.append(registered)
    return sorted(plans, key=lambda registered: registered.date)


def copy_registered_plans(source: Path, target: Path) -> int:
    """Copy the registered plans of all studies in `source` to `target`; returns the number of new ones.

    Raises:
        InputError: a plan is damaged, not a regular file or too large.
    """
    folders = sorted(path for path in source.glob("*") if path.is_dir())
    # No file is read twice, since its owner may replace it in between: what was checked is what is written.
    plans = [(folder.name, registered) for folder in folders for registered in read_registered_plans(folder)]
    return sum([_write_plan(target / name, registered) for name, registered in plans])


def write_run_dates(folder: Path, recorded: Mapping[str, str | None]) -> None:
    """Write the date at which each run of a study was recorded.

    Args:
        recorded: fingerprint -> UTC date, None if unknown.
    """
    write_json(folder / _RUNS, recorded)


def read_run_dates(folder: Path) -> dict[str, str | None]:
    """Read the date of each run by its key, in UTC or None; empty before the first run.

    Raises:
        InputError: the file is damaged, or has the date of a run twice.
    """
    path = folder / _RUNS
    dates = read_untrusted_json(path, may_be_link=True) if path.exists() else {}
    if not isinstance(dates, dict) or not all(date is None or isinstance(date, str) for date in dates.values()):
        raise InputError(f"{path}: not the dates of runs; restore the file from a copy")
    return dates


def plan_files(folder: Path) -> list[Path]:
    """Return the files of a study's registered plans and dates of runs, for an archive."""
    return sorted(folder.glob("*.json"))
