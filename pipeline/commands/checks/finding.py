"""One thing that doctor looked at."""

from dataclasses import dataclass
from typing import Literal

INSTALL = "pip install -c requirements.lock -e '.[all]'"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found about `subject`.

    Attributes:
        status: `problem`: something of the pipeline cannot run; `warning`: it runs, but not as tested
            or not as fast as it could.
        repair: what to do about it; empty if `ok`.
    """

    subject: str
    status: Literal["ok", "warning", "problem"]
    found: str
    repair: str = ""


def ok(subject: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(subject=subject, status="ok", found=found)


def warning(subject: str, found: str, repair: str) -> Finding:
    """It runs all the same."""
    return Finding(subject=subject, status="warning", found=found, repair=repair)


def problem(subject: str, found: str, repair: str) -> Finding:
    """Something does not run."""
    return Finding(subject=subject, status="problem", found=found, repair=repair)
