"""`python -m pipeline doctor`: check the installation and print a fix for each mismatch."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.commands import command_parser
from pipeline.commands.doctor.environment import INSTALL, Finding, check_python_version, problem
from pipeline.errors import InputError


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("doctor", __doc__)


def main(argv: Sequence[str]) -> int:
    """Print a table of findings.

    Returns:
        0 without problems (warnings allowed), else 2.
    """
    make_parser().parse_args(argv)
    project = Path.cwd()
    if not (project / "pyproject.toml").is_file() or not (project / "dvc.yaml").is_file():
        raise InputError(f"{project}: not the project's folder; cd to the one with dvc.yaml")
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
        yield problem(str(error.name), "missing", INSTALL)
        return
    from pipeline.commands.doctor.environment import check_interpreter, check_machine, check_tools
    from pipeline.commands.repair import check_dvc_files

    for check in (check_interpreter, check_packages, check_tools, check_machine, check_dvc_files):
        yield from check(project)


def format_finding(finding: Finding) -> str:
    """Return one line, and the repair on a second line."""
    line = f"{finding.status:8} {finding.subject:13} {finding.detail}"
    return f"{line}\n{'':8} {'':13} -> {finding.repair}" if finding.repair else line
