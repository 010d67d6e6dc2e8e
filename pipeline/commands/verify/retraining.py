"""Audit runs: train a random sample of them again, and compare hash chains, curves and test answers bit by bit."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
import torch

from pipeline.commands.verify.differences import differences, differing_part
from pipeline.commands.verify.recorded import Project, StoredRun
from pipeline.commands.verify.studies import StudyRun, VerifiedStudy, described
from pipeline.distributed import World, check_openmp
from pipeline.errors import InputError, OutOfMemory
from pipeline.run_log import RunLog
from pipeline.runs.checkpoints import has_kept
from pipeline.runs.execution import LoadedSplits, execute_run
from pipeline.runs.ledger import RunResult
from pipeline.stats.estimates import chance_of_detection, excluded_count, excluded_share
from pipeline.stats.formatting import plural
from pipeline.training.canonical_runs import canonical_hashes
from pipeline.training.checkpointing import Checkpointer
from pipeline.training.code_families import Hashes, find_family, read_families
from pipeline.training.effective_settings import comm_config_from
from pipeline.training.run_key import machine_info, matches_current_code, training_code_digest
from pipeline.training.run_options import RunOptions

ALPHA = 0.01
"""The audit's statements hold at a confidence of 1 - ALPHA."""

_MAX_THREADS = 1024

Outcome = Literal["equal", "differs", "undecided"]

Retrain = Callable[[StudyRun], RunResult]
"""Trains a run or a segment again."""


class Trainer(Protocol):
    """Trains a run again; a checkpointer may start it elsewhere and end it earlier."""

    def __call__(self, run: StudyRun, checkpointer: Checkpointer | None = None) -> RunResult: ...


@dataclass(frozen=True, kw_only=True)
class AuditSample:
    """The runs of an audit, or their segments.

    Attributes:
        decidable: those that this machine can train to the same bits, by fingerprint, or by fingerprint and link.
        undecidable: reason -> number of other runs.
        chosen: a random sample of `decidable`, in the order of training.
    """

    decidable: Mapping[str, StudyRun]
    undecidable: Mapping[str, int]
    chosen: Sequence[StudyRun]


def audit(
    project: Project,
    sample: AuditSample,
    retrain: Retrain,
    *,
    retrain_segment: Retrain,
    world: World,
    seed: int,
    out: Callable[[str], object],
) -> bool:
    """Train a sample of runs or segments again and print a line for each, then what that excludes.

    Args:
        retrain_segment: trains a part of a run that differs once more, from a kept checkpoint.
        seed: of the choice.

    Returns:
        Whether one differs from its record.
    """
    for reason, n_runs in sample.undecidable.items():
        out(f"audit    {n_runs} runs cannot be decided: {reason}")
    if not sample.chosen:
        out("audit    this machine cannot decide any run; nothing was trained")
        return False
    unit = "segments" if any(run.is_segment for run in sample.chosen) else "runs"
    seconds = sum(_seconds(project.runs[run.fingerprint], run) for run in sample.chosen)
    out(
        f"audit    {len(sample.chosen)} of {len(sample.decidable)} {unit}, chosen by seed {seed}; their training "
        f"took {seconds:.0f} s where it was recorded"
    )
    outcomes: Counter[Outcome] = Counter()
    confirm = _confirm(project, retrain, retrain_segment, world)
    for outcome, line in audit_runs(project, sample, retrain, confirm=confirm):
        outcomes[outcome] += 1
        out(line)
    for line in conclusion(len(sample.decidable), outcomes, unit):
        out(f"audit    {line}")
    return outcomes["differs"] > 0


def _seconds(recorded: StoredRun, run: StudyRun) -> float:
    """Return the recorded time of a run; of a segment the share that its steps have."""
    steps = [0, *(link.step for link in recorded.result.links)]
    first, last = steps[run.first_link], steps[-1 if run.n_links is None else run.n_links]
    return recorded.result.seconds * (last - first) / max(1, steps[-1])


def choose_runs(
    project: Project, studies: Mapping[str, VerifiedStudy], *, count: int, seed: int, world: World
) -> AuditSample:
    """Choose `count` of the runs that this machine can decide, or all if there are fewer, by a seed."""
    runs = {run.fingerprint: run for study in studies.values() for run in study.runs}
    undecidable: dict[str, int] = {}
    decidable = {}
    for fingerprint in sorted(runs):
        reason = _obstacle(project.runs[fingerprint], world)
        if reason:
            undecidable[reason] = undecidable.get(reason, 0) + 1
        else:
            decidable[fingerprint] = runs[fingerprint]
    names = list(decidable)
    order = np.random.default_rng(seed).permutation(len(names))[:count]
    return AuditSample(
        decidable=decidable, undecidable=undecidable, chosen=[decidable[names[i]] for i in order]
    )  # fmt: skip


def _obstacle(run: StoredRun, world: World) -> str:
    """Return why this machine cannot train a run to the same bits; empty if it can."""
    if run.key is None or run.machine is None:
        return "there is no ledger, which has the machine of each run"
    if not matches_current_code(run.key):
        return (
            f"trained by code of family {str(run.key.job.get('code'))[:12]} that gives other bits than this; check out "
            "a commit of the run's date"
        )
    if not run.result.links:
        return "recorded without a hash chain, by an earlier version"
    settings = run.key.job.get("settings", {})
    if settings.get("reduction") == "ddp" and run.result.workers > 1:
        return f"trained by {run.result.workers} processes of torchrun, whose rounding one process does not repeat"
    if settings.get("reduction") == "ddp" and len(run.result.hardware) > 1:
        return "interrupted and continued on another number of processes or images in a pass"
    if not 1 <= _threads(run) <= _MAX_THREADS:
        return "recorded with a number of CPU threads that no machine has"
    if not _same_arithmetic(run, world):
        return f"trained on {_machine_text(run.machine)}, and this is {_machine_text(machine_info(world.device))}"
    return ""


def _threads(run: StoredRun) -> int:
    """Return the CPU threads of the run's processes; 1 for a GPU, whose bits they do not change; 0 for no number."""
    threads = (run.machine or {}).get("threads", 1)
    return threads if isinstance(threads, int) else 0


def _machine_text(machine: Mapping[str, Any]) -> str:
    return ", ".join(str(machine.get(name)) for name in ("device", "arithmetic", "torch") if machine.get(name))


def _without_threads(machine: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in machine.items() if name != "threads"}


def _same_arithmetic(run: StoredRun, world: World) -> bool:
    """Return whether this machine is of the run's kind, or gives the canonical hashes that are listed for that kind."""
    machine, here = _without_threads(run.machine or {}), machine_info(world.device)
    if machine == here:
        return True
    listed = _listed_hashes(machine)
    return listed is not None and world.device.type == "cpu" and _agree(listed, measured_hashes())


def _listed_hashes(machine: Mapping[str, Any]) -> Hashes | None:
    family = find_family(training_code_digest(), read_families())
    return family.hashes_on(machine) if family else None


def _agree(listed: Hashes, measured: Hashes) -> bool:
    common = listed.keys() & measured.keys()
    return bool(common) and all(listed[name] == measured[name] for name in common)


@cache
def measured_hashes() -> Hashes:
    """Return the canonical hashes of today's code on this machine, which take half a minute, once per process."""
    return canonical_hashes()


def retrainer(project: Project, world: World, log: RunLog) -> Trainer:
    """Return the function that trains a run of `project` again in this process, as it was trained; `log` shows it."""
    prepared = project.prepared
    splits = LoadedSplits(
        train_images=prepared.train.source, test_images=prepared.test.source, test_labels=prepared.test.labels,
        class_names=prepared.class_names,
    )  # fmt: skip

    def retrain(run: StudyRun, checkpointer: Checkpointer | None = None) -> RunResult:
        recorded = project.runs[run.fingerprint]
        recipe = project.params.studies[run.study].effective_recipe(project.params.train)
        torch.set_num_threads(_threads(recorded))
        check_openmp(torch.get_num_threads())
        return execute_run(
            run.spec, splits, run.rows, world=world, log=log, weights=None,
            eval_batch_size=recipe.eval_batch_size,
            options=RunOptions(
                title=f"verify {run.study}: {described(run.spec)}", micro_batch=recorded.result.micro_batch,
                comm=comm_config_from(recipe), checkpointer=checkpointer,
            ),
        )  # fmt: skip

    return retrain


def _confirm(
    project: Project, retrain: Retrain, retrain_segment: Retrain, world: World
) -> Callable[[StudyRun, RunResult], str]:
    """Return a function that says why this machine may have caused a difference; empty if the record is wrong."""

    def confirm(run: StudyRun, again: RunResult) -> str:
        folder = project.work.kept_checkpoints(run.fingerprint)
        part = run
        if not run.is_segment:
            recorded = project.runs[run.fingerprint].result
            part = differing_part(run, recorded, again, is_kept=lambda step: has_kept(folder, step))
        # A second training of the part alone is faster. If it differs, its checkpoint may be wrong, which the project's
        # owner made. Only a second training of the whole run shows that this machine does not repeat its bits.
        if not part.is_segment or run.is_segment or not _is_repeated(part, again, retrain_segment):
            found = differences(again, run.part_of(retrain(run)))
            if found:
                return f"two trainings here differ too: {found[0]}"
        machine = _without_threads(project.runs[run.fingerprint].machine or {})
        listed = _listed_hashes(machine) if world.device.type == "cpu" else None
        if listed is not None and not _agree(listed, measured_hashes()):
            return "the canonical runs give other hashes here than the list has for this kind of machine"
        return ""

    return confirm


def _is_repeated(part: StudyRun, again: RunResult, retrain_segment: Retrain) -> bool:
    """Return whether a second training of a part of a run equals the first one; False if it cannot be trained."""
    expected = part.part_of(again)
    try:
        second = part.part_of(retrain_segment(part))
    except OutOfMemory:
        raise
    except InputError:
        return False
    if part.n_links is not None:
        # A segment that ends before the run has links and a curve, and no results.
        second = replace(expected, links=second.links, history=second.history)
    return not differences(expected, second)


def audit_runs(
    project: Project, sample: AuditSample, retrain: Retrain, *, confirm: Callable[[StudyRun, RunResult], str]
) -> Iterator[tuple[Outcome, str]]:
    """Train each chosen run again; yield the outcome and a line.

    Args:
        confirm: returns why this machine may have caused a difference, see `_confirm`.
    """
    for run in sample.chosen:
        recorded = project.runs[run.fingerprint]
        name = f"{run.fingerprint} ({run.study}: {described(run.spec)}{_steps(recorded, run)})"
        try:
            again = run.part_of(retrain(run))
        except OutOfMemory as error:
            yield "undecided", f"audit    {name}: {error}"
            continue
        except InputError as error:
            # For example a recorded number of images in a pass that no training can have.
            yield "differs", f"DIFFERS  {recorded.folder}: {name}: cannot be trained as it is recorded ({error})"
            continue
        found = differences(run.part_of(recorded.result), again)
        try:
            reason = confirm(run, again) if found else ""
        except OutOfMemory as error:
            reason = str(error)
        if not found:
            n_images = len(again.correct) if again.correct is not None else 0
            links = plural(len(again.links) - run.first_link, "link") + " of the hash chain"
            yield "equal", f"equal    {name}: {links}, {n_images} test answers"
        elif reason:
            yield "undecided", f"audit    {name}: differs, but this machine cannot decide, since {reason}"
        else:
            yield "differs", f"DIFFERS  {recorded.folder}: {name}: {'; '.join(found)}"


def _steps(recorded: StoredRun, run: StudyRun) -> str:
    """Return the steps of a segment, in words; empty for a run."""
    if not run.is_segment:
        return ""
    steps = [0, *(link.step for link in recorded.result.links)]
    return f", steps {steps[run.first_link]} to {steps[-1 if run.n_links is None else run.n_links]}"


def conclusion(n_runs: int, outcomes: Mapping[Outcome, int], unit: str = "runs") -> Iterator[str]:
    """Yield what an audit shows of all `n_runs` runs, or segments of runs, that could be decided."""
    n_audited, n_wrong = outcomes.get("equal", 0), outcomes.get("differs", 0)
    if n_wrong:
        yield f"{n_wrong} of {sum(outcomes.values())} audited {unit} are other than recorded"
        return
    if outcomes.get("undecided", 0):
        yield f"nothing is excluded, since some audited {unit} could not be decided"
        return
    confidence = f"{100 * (1 - ALPHA):g} %"
    count = excluded_count(n_runs, n_audited, ALPHA)
    if n_audited == n_runs:
        yield f"all {n_runs} {unit} are as recorded"
    else:
        missed = 1 - chance_of_detection(n_runs, n_audited, count)
        yield (
            f"at {confidence}, fewer than {count} of the {n_runs} {unit} are other than recorded: {n_audited} random "
            f"ones would miss {count} such {unit} with a probability of {missed:.2g} (hypergeometric)"
        )
    share = excluded_share(n_audited, ALPHA)
    yield f"of any number of {unit}, a share below {100 * share:.1f} % would be: f = 1 - {ALPHA:g}^(1/{n_audited})"
    if unit == "segments":
        yield "a run that is other than recorded has one such segment or more"
    yield "not excluded: choices that the ledger does not show; docs/guides/verify.md lists them"
