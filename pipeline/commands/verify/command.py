"""`python -m pipeline verify [FOLDER]`: derive a report again from its ledger, and audit runs by training them again.

FOLDER is a project with params.yaml, data/ and .work/, or its data/. --params and --work are relative to it. At no cost
it derives the tables from the finished runs, the report from the tables, and compares every number. It compares the
runs with the plans that were stated before them, and with each other. Each contradiction is one line: file, what,
value, expected value.

--retrain K trains K random runs again and compares them bit by bit; with --segments, K segments between the checkpoints
that a study with `keep_checkpoints` keeps. A run that differs is named with the steps between which it first differs:
the record has hashes at the links of its chain alone. Choose --seed after the results were published, so that nobody
knows which runs. Only a machine whose arithmetic is that of the runs can decide.
"""

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from pipeline import distributed
from pipeline.artifacts.untrusted import check_special_files
from pipeline.commands import check_minimums, command_parser
from pipeline.commands.verify.findings import Findings
from pipeline.commands.verify.recorded import Project, read_project
from pipeline.commands.verify.report import check_digests, check_filters, check_report
from pipeline.commands.verify.retraining import AuditSample, Retrain, audit, choose_runs, retrainer
from pipeline.commands.verify.runs import check_plans, check_runs
from pipeline.commands.verify.segments import choose_segments, segment_retrainer
from pipeline.commands.verify.studies import StudyRun, VerifiedStudy, check_leftovers, check_study
from pipeline.errors import InputError, printable
from pipeline.live import StudyProgress
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog, stderr_log
from pipeline.runs.ledger import RunResult

_SEEDS = 2**32


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("verify", __doc__, "params", "work")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), metavar="FOLDER", help="project or its data/ (default: .)"
    )
    parser.add_argument(
        "--published", nargs="+", default=[], metavar="HASH",
        help="hashes of plans, or their first digits, that were published before the runs",
    )  # fmt: skip
    parser.add_argument("--retrain", type=int, default=0, metavar="K", help="train K random runs again (default: 0)")
    parser.add_argument(
        "--segments", action="store_true", help="with --retrain: K segments between kept checkpoints instead of runs"
    )
    parser.add_argument("--seed", type=int, help="seed of the choice of runs (default: a new one, which is printed)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Verify a project and print one line for each check, contradiction and limit.

    Returns:
        0 if nothing contradicts; 1 if something does.

    Raises:
        InputError: parameters or images are missing or damaged, or an option is out of range.
    """
    arguments = make_parser().parse_args(argv)
    _check_arguments(arguments)
    root, data = _folders(arguments.folder)
    findings = Findings()
    # An absolute path replaces the folder.
    work = WorkPaths(root=root / arguments.work)
    # The files may be someone else's, and libraries that read them would wait for a pipe forever.
    check_special_files([data, work.ledger])
    project = read_project(root / arguments.params, DataPaths(root=data), work, findings)
    studies = verify(project, findings, published=arguments.published)
    for line in findings.lines():
        _print(line)
    wrong = bool(findings.differences)
    if arguments.retrain:
        seed = secrets.randbelow(_SEEDS) if arguments.seed is None else arguments.seed
        with distributed.join_process_group(1) as world:
            log = stderr_log(None)
            retrain_segment = segment_retrainer(project, world, log)
            retrain: Retrain
            if arguments.segments:
                choose, retrain = choose_segments, retrain_segment
            else:
                choose, retrain = choose_runs, retrainer(project, world, log)
            sample = choose(project, studies, count=arguments.retrain, seed=seed, world=world)
            retrain = with_progress(retrain, project, sample, log)
            wrong |= audit(
                project, sample, retrain, retrain_segment=retrain_segment, world=world, seed=seed, out=_print
            )
    print("result   " + ("something differs" if wrong else "nothing that was checked differs"))
    return 1 if wrong else 0


def _print(line: str) -> None:
    """Print a line that may quote names and values of files that anyone may have written."""
    print(printable(line))


def verify(project: Project, findings: Findings, *, published: Sequence[str] = ()) -> dict[str, VerifiedStudy]:
    """Run all checks that train nothing, and return the studies whose runs could be read."""
    check_runs(project, findings)
    studies: dict[str, VerifiedStudy] = {}
    for name in project.params.studies:
        with findings.collecting_errors(project.data.runs(name)):
            studies[name] = check_study(name, project, findings)
    with findings.collecting_errors(project.work.ledger):
        check_leftovers(project, studies, findings)
    check_plans(project, studies, findings, published=published)
    check_digests(project, findings)
    check_filters(project, findings)
    with findings.collecting_errors(project.data.summary):
        check_report(project, studies, findings)
    return studies


def with_progress(retrain: Retrain, project: Project, sample: AuditSample, log: RunLog) -> Retrain:
    """Return `retrain` with a line in `log` after each run or segment of the sample, also after one that fails.

    A run that is trained twice, to confirm a difference, has one line.
    """
    unit = "segment" if any(run.is_segment for run in sample.chosen) else "run"
    progress = StudyProgress([n_images(project, run) for run in sample.chosen], unit=unit)
    ended = set()

    def retrain_and_say(run: StudyRun) -> RunResult:
        try:
            return retrain(run)
        finally:
            if (part := (run.fingerprint, run.first_link)) not in ended:
                ended.add(part)
                log.info(f"verify: {progress.end_run()}")

    return retrain_and_say


def n_images(project: Project, run: StudyRun) -> int:
    """Return the number of images that a run, or a segment of one, trains on."""
    sizes = run.spec.settings.batch_sizes
    steps = [0, *(link.step for link in project.runs[run.fingerprint].result.links)]
    first, last = steps[run.first_link], steps[-1 if run.n_links is None else run.n_links]
    # Steps are as recorded, and a record may be forged.
    return max(0, sizes.examples(last) - sizes.examples(first))


def _folders(folder: Path) -> tuple[Path, Path]:
    """Return the project's folder and its data folder, from either of them."""
    if (folder / "prepare").is_dir() and not (folder / "data").is_dir():
        return folder / "..", folder
    return folder, folder / "data"


def _check_arguments(arguments: argparse.Namespace) -> None:
    check_minimums(arguments, retrain=0, seed=0)
    for digits in arguments.published:
        if len(digits) < 8 or not set(digits) <= set("0123456789abcdef"):
            raise InputError(f"--published {digits}: not 8 to 64 hex digits of a plan's SHA-256; copy it whole")
