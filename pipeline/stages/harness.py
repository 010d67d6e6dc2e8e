"""The harness of all stages: arguments, parameters, lock, log, resources, exit code."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.artifacts.files import write_bytes
from pipeline.artifacts.recorded import check_present, check_recorded, unrecorded_note
from pipeline.artifacts.stage_inputs import stage_inputs
from pipeline.config.batch_sizes import with_recorded_sizes
from pipeline.config.params import Params, load_params
from pipeline.config.runtime import DaskConfig
from pipeline.energy import UNKNOWN_ENERGY, Energy, measure_energy, total_energy
from pipeline.errors import InputError, Terminated, fix_hint
from pipeline.instruction_set import limit_instructions
from pipeline.locks import file_lock
from pipeline.paths import DataPaths, WorkPaths
from pipeline.processes import (
    check_memory_limit,
    check_space,
    freeze_imported_objects,
    is_orphaned,
    set_parent_death_signal,
)
from pipeline.run_log import ResourceMeter, RunLog, stderr_log

# Stages that read `StageContext.dask`.
_STAGES_WITH_TASKS = ("reduce", "filter")

FILES_KEPT = "finished files are kept"
"""What a stage says at SIGTERM outside a training."""


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """Input of a stage; `item` is its network or study, if it has one."""

    stage: str
    item: str | None
    params: Params
    data: DataPaths
    work: WorkPaths
    log: RunLog
    images: list[int] = field(default_factory=list)
    """Numbers of images processed, appended by the stage; they become images/s."""
    earlier_seconds: list[float] = field(default_factory=list)
    """Seconds of parts that an earlier, interrupted run had finished."""
    gpu_bytes: list[int] = field(default_factory=list)
    """Peak memory of each GPU, bytes."""
    arm_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of the runs of each arm."""
    joules: Callable[[], Energy] = lambda: UNKNOWN_ENERGY
    """Energy since the stage began, of the devices of all ranks; a collective call. Unknown without a meter."""
    extra_joules: list[Energy] = field(default_factory=list)
    """Energy of parts that were done at least partly before or outside this process."""
    arm_joules: dict[str, Energy] = field(default_factory=dict)
    """Energy of the runs of each arm."""

    @property
    def item_name(self) -> str:
        """The network or study of a stage that has one."""
        assert self.item is not None, f"{self.stage} is a stage of all networks and studies"
        return self.item

    @property
    def image_folder(self) -> Path | None:
        """Folder of images that stay in their files. It changes no result, since their hashes are checked."""
        return self.params.prepare.folder

    @property
    def dask(self) -> DaskConfig:
        """Where independent tasks run. It changes no result."""
        return self.params.dask

    @property
    def name(self) -> str:
        """The DVC stage name: `extract@resnet18`."""
        return f"{self.stage}@{self.item}" if self.item else self.stage


def run_stage(
    stage: str,
    body: Callable[[StageContext], None],
    *,
    item: str | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Run a stage's `body` and exit the process.

    Args:
        item: name of the argument of a matrix stage, `network` or `study`.
        argv: command line; default: that of the process.

    Exit codes: 0; 2 with one line for bad input; 75 (EX_TEMPFAIL) with one line after SIGTERM, and after SIGINT in a
    training, when finished files and the state of a training are kept; 130 after SIGINT elsewhere.
    """
    with exit_codes(), exit_at_sigterm(FILES_KEPT):
        exit_with_dvc()
        arguments = parse_arguments(stage, item, argv)
        back_up_dvc_lock(WorkPaths(root=arguments.work))
        with measure_energy() as meter:
            context = replace(make_context(stage, item, arguments), joules=meter.read)
            if stage in _STAGES_WITH_TASKS and context.dask.is_remote:
                context.extra_joules.append(Energy(gpu=0.0))
            with record_resources(context), hold_lock(context):
                unrecorded = check_inputs(context)
                body(context)
                log_unrecorded(context, unrecorded)


def parse_arguments(stage: str, item: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments of all stages, and `--<item>`."""
    parser = argparse.ArgumentParser(prog=f"python -m pipeline.stages.{stage}")
    if item:
        parser.add_argument(f"--{item}", required=True)
    add_path_arguments(parser)
    return parser.parse_args(argv)


def add_path_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--params`, `--data` and `--work`."""
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of all artifacts")
    parser.add_argument("--work", type=Path, default=Path(".work"), help="folder for logs and resuming")


def make_context(stage: str, item: str | None, arguments: argparse.Namespace, *, silent: bool = False) -> StageContext:
    """Read and check the parameter file and open the stage's log.

    Raises:
        InputError: the parameter file is invalid, or does not have the item.
    """
    data = DataPaths(root=arguments.data)
    params = load_params(arguments.params, accept_old_keys=_opens_results(stage, data))
    limit_instructions(params.train.isa)
    if stage != "train":  # which finds them
        params = with_recorded_sizes(params, data)
    value: str | None = getattr(arguments, item) if item else None
    names: dict[str, list[str]] = {"network": [*params.networks], "study": [*params.studies]}
    if item and value not in names[item]:
        raise InputError(f"--{item} {value}: not in {arguments.params}; it has {names[item]}")
    work = WorkPaths(root=arguments.work)
    name = f"{stage}@{value}" if value else stage
    return StageContext(
        stage=stage,
        item=value,
        params=params,
        data=data,
        work=work,
        log=RunLog.silent() if silent else stderr_log(work.log(name)),
    )


def _opens_results(stage: str, data: DataPaths) -> bool:
    """Return whether the stage opens finished results, whose parameters may have old keys.

    That is the report, and `prepare` in an unpacked archive of `runs pack`: it has results and no prepared images.
    """
    is_unpacked = not data.provenance("prepare").exists() and any(data.root.glob("train/*.provenance.json"))
    return stage == "report" or (stage == "prepare" and is_unpacked)


def check_inputs(context: StageContext) -> list[str]:
    """Check that the files which the stage reads are those that earlier stages wrote, and that it can write its own.

    Returns:
        The earlier stages without a provenance file, for `log_unrecorded`.

    Raises:
        InputError: naming the first file that is not, and the command that writes it again; or the folder, or the
            limit on memory.
        OSError: a folder cannot be written.
    """
    check_memory_limit()
    inputs = stage_inputs(context.stage, context.item, context.params, context.data)
    unrecorded = check_recorded(context.data, inputs)
    if context.stage != "report":  # An archive of results has no images.
        check_present(inputs)
    outputs = context.data.provenance(context.stage, context.item).parent
    for folder in (outputs if outputs.exists() else context.data.root / context.stage, context.work.root):
        check_space(folder)
    return unrecorded


def log_unrecorded(context: StageContext, unrecorded: Sequence[str]) -> None:
    """Log the earlier stages without provenance, whose files could not be checked."""
    if unrecorded:
        context.log.info(f"{context.name}: {unrecorded_note(unrecorded)}")


@contextmanager
def exit_codes() -> Iterator[None]:
    """Exit with one line and code 2 for bad input, and with 75 for a saved state; bugs keep their traceback."""
    freeze_imported_objects()
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Terminated as saved:
        print(f"terminated: {saved}; run the same command again to resume", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to resume", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        # Errors of memory and files have many classes; `fix_hint` recognizes them, and all others are raised again.
        if not (line := fix_hint(error)):
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def exit_at_sigterm(kept: str) -> Iterator[None]:
    """Leave the block at SIGTERM as at Ctrl-C, so that temporary files and workers go; a training in it saves first.

    Args:
        kept: what is kept, for the line that is printed.

    Raises:
        Terminated: with `kept`.
    """

    def leave(*_: object) -> None:
        # A second signal must not end the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated(kept)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def record_resources(context: StageContext) -> Iterator[None]:
    """Record wall time, memory, energy and images/s of the block, log its exception if any, and close the log."""
    meter = ResourceMeter()
    try:
        yield
        meter.write(
            context.work.resources(context.name),
            joules=total_energy([context.joules(), *context.extra_joules]),
            images=sum(context.images) or None,
            earlier_seconds=sum(context.earlier_seconds),
            gpu_bytes=max(context.gpu_bytes, default=None),
            arms=context.arm_seconds,
            arms_joules=context.arm_joules,
        )
    except BaseException as error:
        # Terminated and KeyboardInterrupt are logged too. On a full disk the terminal alone has the error.
        with suppress(OSError):
            context.log.write_to_file(f"{type(error).__name__}: {error}")
        raise
    finally:
        context.log.close()


@contextmanager
def hold_lock(context: StageContext) -> Iterator[None]:
    """Exclude a second run of the same stage."""
    # All studies share the ledger, and `runs import` writes to it.
    lock, name = ("train", "train of any study, or runs import") if context.stage == "train" else (context.name,) * 2
    with file_lock(context.work.lock(lock), name):
        yield


def exit_with_dvc() -> None:
    """Under DVC, exit when DVC is killed: a stage that outlives it would race with the next one."""
    if "DVC_ROOT" in os.environ:
        # Every file is written atomically, so an immediate exit loses nothing.
        set_parent_death_signal(signal.SIGKILL)
        # DVC may have died during the imports of this process.
        if is_orphaned("dvc"):
            sys.exit("DVC has ended; run `dvc repro` again")


def back_up_dvc_lock(work: WorkPaths) -> None:
    """Under DVC, copy dvc.lock: a DVC that is killed during a write leaves a partial file."""
    lock = Path("dvc.lock")
    if "DVC_ROOT" in os.environ and lock.exists():
        write_bytes(work.dvc_lock, lock.read_bytes())
