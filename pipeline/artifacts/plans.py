"""Plans of studies as they were stated, in the ledger: one file for each statement, which nothing replaces."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import read_json, remove_leftovers, write_bytes, write_json
from pipeline.config.study import plan_hash
from pipeline.errors import InputError

_RUNS = "runs.json"


@dataclass(frozen=True, kw_only=True)
class RegisteredPlan:
    """A plan, and when it was stated.

    Attributes:
        date: UTC, as `2026-11-23T18:45:12.000000Z`.
        plan: values as `pipeline.config.study.build_plan` gives them.
    """

    date: str
    plan: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        return plan_hash(self.plan)


def utc_timestamp(now: datetime) -> str:
    """UTC to the microsecond; such texts sort as their dates do.

    Args:
        now: with a time zone.
    """
    assert now.utcoffset() is not None
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def register_plan(folder: Path, plan: Mapping[str, Any], now: datetime) -> bool:
    """Add `plan` to the statements of a study in `folder`; returns whether the newest was another one.

    Raises:
        InputError: a statement is damaged.
    """
    remove_leftovers(folder)
    earlier = read_registered_plans(folder)
    digest = plan_hash(plan)
    if earlier and earlier[-1].sha256 == digest:
        return False
    date = utc_timestamp(now)
    name = f"{date.replace(':', '')}-{digest[:12]}.json"
    write_json(folder / name, {"date": date, "plan": plan, "sha256": digest})
    return True


def read_registered_plans(folder: Path) -> list[RegisteredPlan]:
    """All statements of a study, the oldest first.

    Raises:
        InputError: one is damaged, or its plan is not the one that its hash was made of.
    """
    found = []
    for path in sorted(folder.glob("2*.json")):
        record = read_json(path)
        try:
            statement = RegisteredPlan(date=record["date"], plan=record["plan"])
            whole = statement.sha256 == record["sha256"]
        except (TypeError, KeyError, AttributeError):
            whole = False
        if not whole:
            raise InputError(f"{path}: damaged plan, or changed by hand; restore the file from a copy of the ledger")
        found.append(statement)
    return sorted(found, key=lambda statement: statement.date)


def copy_registered_plans(source: Path, target: Path) -> int:
    """Add the statements of all studies below `source` to those below `target`; returns how many were new.

    Raises:
        InputError: one is damaged.
    """
    new = 0
    for folder in sorted(path for path in source.glob("*") if path.is_dir()):
        read_registered_plans(folder)
        for path in sorted(folder.glob("2*.json")):
            place = target / folder.name / path.name
            if not place.exists():
                write_bytes(place, path.read_bytes())
                new += 1
    return new


def write_run_dates(folder: Path, recorded: Mapping[str, str | None]) -> None:
    """Keep when each run of a study was recorded.

    Args:
        recorded: fingerprint -> UTC date, None where it is not known.
    """
    write_json(folder / _RUNS, recorded)


def read_run_dates(folder: Path) -> dict[str, str | None]:
    """As written; empty where no run is recorded yet."""
    dates: dict[str, str | None] = read_json(folder / _RUNS) if (folder / _RUNS).exists() else {}
    return dates


def plan_files(folder: Path) -> list[Path]:
    """The statements of a study and the dates of its runs, for an archive."""
    return sorted(folder.glob("*.json"))
