"""Train runs of a study at the same time, each by one process of this machine, into the common ledger.

The train stage starts these processes before it trains what is left and writes its tables. A process computes the keys
of the runs as the stage does, with as many CPU threads, so no key and no result depends on how many there are.

    python -m pipeline.stages.concurrent_runs --study NAME --runs KEY ... --process 1 --parent PID
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Literal

import torch

from pipeline import distributed
from pipeline.distributed import LaunchPlan, choose_workers, visible_gpus
from pipeline.errors import Terminated
from pipeline.live import LiveMetrics, StudyProgress, following_stages
from pipeline.processes import describe_signal, set_parent_death_signal, signal_handler
from pipeline.run_log import RunLog, stderr_log
from pipeline.runs.ledger import Ledger
from pipeline.stages.harness import StageContext, add_path_arguments, check_inputs, exit_codes, hold_lock, make_context
from pipeline.stages.study_runs import load_study, next_runs, resolve_runs, study_recipe
from pipeline.stages.train import register_plans, train_runs
from pipeline.training.effective_settings import launch_plan

# SIGTERM ends a process without a message if it has not begun to train. Nothing is lost then.
_SAVED = (os.EX_TEMPFAIL, -signal.SIGTERM)
_MODULE = "pipeline.stages.concurrent_runs"

MAX_BATCH_PER_GPU = 1024
"""Batch size up to which a run with `workers: auto` gets one GPU, and not all: smaller shares leave GPUs idle."""


def train_concurrently(context: StageContext, arguments: Sequence[str]) -> None:
    """Train the missing runs of `context.item`, a study, that need one process each, several at a time.

    Does nothing where `concurrent_runs` is 1.

    Args:
        arguments: of the train stage.

    Raises:
        InputError: as the stage.
        Terminated: the processes received SIGTERM; their runs are saved.
    """
    gpus, recipe = visible_gpus(), study_recipe(context)
    n, plan = n_processes(recipe.concurrent_runs, len(gpus)), launch_plan(recipe)
    if n == 1:
        return
    with (
        distributed.join_process_group(plan.threads) as world,
        hold_lock(context),
        closing(stderr_log(context.work.log(context.name))) as log,
    ):
        check_inputs(context)
        context, data = load_study(context, world)
        runs, ledger, n_test = resolve_runs(context, data, world), Ledger(context.work.ledger), len(data.test.labels)
        register_plans(context)
        restored, keys = ledger.restore_replaced(), sorted({run.fingerprint for run in runs if run.key})
        for line in (*restored, *ledger.set_aside_damaged(keys, data.test.labels)):
            log.info(f"{context.name}: {line}")
        while True:
            missing = [runs[index] for index in next_runs(context, runs, ledger, n_test)]
            alone = [run for run in missing if trains_alone(plan, run.spec.settings.batch_size)]
            if not alone:
                return
            settings = {run.fingerprint: run.spec.settings for run in alone}
            costs = {key: one.batch_sizes.examples(one.steps) for key, one in settings.items()}
            shares = divide(costs, n)
            line = opening_line(
                plan, n_runs=len(alone), n_at_a_time=len(shares), n_gpus=len(gpus), n_larger=len(missing) - len(alone),
                threads=torch.get_num_threads(),
            )  # fmt: skip
            log.info(f"{context.name}: {line}")
            names = {run.fingerprint: run.spec.description for run in alone}
            monitor = StudyMonitor(replace(context, log=log), ledger, names, costs, n_processes=len(shares))
            train_in_processes(arguments, shares, gpus, monitor.update)


class StudyMonitor:
    """Print a line for each run that another process adds to the ledger, and write the page of the whole study.

    Args:
        context: of the study.
        names: key -> description of the run, of all runs that are trained.
        costs: key -> images that the run trains on.
        n_processes: number of runs that train at a time.
        clock: returns seconds.
    """

    def __init__(
        self,
        context: StageContext,
        ledger: Ledger,
        names: Mapping[str, str],
        costs: Mapping[str, int],
        *,
        n_processes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        study = context.item_name
        following = following_stages(study, context.params.studies)
        self._context, self._ledger, self._names = context, ledger, names
        # A run that has to be trained again, with its weights, is in the ledger already.
        self._changed = {key: self._last_change(key) for key in names}
        # The processes train the most expensive runs first.
        self._progress = StudyProgress(sorted(costs.values(), reverse=True), following=following, clock=clock)
        self._clock, self._start, self._n_processes = clock, clock(), n_processes
        self._live = LiveMetrics(context.data.live_metrics, study=study, n_runs=len(names), log=context.log.info)
        self._live.start_run(f"{n_processes} runs at a time, see process-*/report.html")

    def update(self) -> None:
        """Report the runs that have ended since the last call."""
        for key in [key for key, before in self._changed.items() if self._last_change(key) not in (before, None)]:
            del self._changed[key]
            result = self._ledger.get(key)
            # A run that took longer than this study has run was resumed; its processes were as many as now.
            earlier = max(0.0, result.seconds - (self._clock() - self._start)) / self._n_processes
            self._progress.begin_run()
            self._live.end_run(result.top1, self._progress.end_run(earlier))
            place = f"{self._context.name}: {self._progress.where}"
            self._context.log.info(f"{place}; {self._names[key]}: {result.outcome}")

    def _last_change(self, key: str) -> int | None:
        with suppress(FileNotFoundError):
            return self._ledger.folder(key).stat().st_mtime_ns
        return None


def n_processes(requested: int | Literal["auto"], n_gpus: int) -> int:
    """Return how many runs train at a time; `auto`: one on each GPU, and one without GPUs."""
    return max(1, n_gpus) if requested == "auto" else requested


def trains_alone(plan: LaunchPlan, batch_size: int) -> bool:
    """Return whether one process trains a run of this batch size, while others train other runs.

    A run that would have all GPUs of the machine has one instead, if its batch is at most `MAX_BATCH_PER_GPU`.
    """
    if choose_workers(plan.workers, plan.valid_world_sizes) == 1:
        return True
    return plan.workers == "auto" and 1 in plan.valid_world_sizes and batch_size <= MAX_BATCH_PER_GPU


def opening_line(plan: LaunchPlan, *, n_runs: int, n_at_a_time: int, n_gpus: int, n_larger: int, threads: int) -> str:
    """Return a line: how many runs train at a time, and what decides which of them do.

    Args:
        n_larger: number of runs that do not train alone.
        threads: of each process, without GPUs.
    """
    each = "each by one process on its GPU" if n_gpus else f"each by one process of {threads} threads"
    if plan.workers == "auto" and n_gpus > 1:
        each = f"batches of up to {MAX_BATCH_PER_GPU:,} images one GPU each"
        if n_larger:
            each += f", {n_larger} larger {'runs' if n_larger > 1 else 'run'} on all GPUs afterwards"
    return f"{n_runs} runs, {n_at_a_time} at a time, {each} (concurrent_runs)"


def divide(costs: Mapping[str, int], n: int) -> list[list[str]]:
    """Divide runs among at most `n` processes: the most expensive first, each to the process with the least to do.

    Args:
        costs: images that a run trains on, by key.
    """
    shares: list[list[str]] = [[] for _ in range(min(n, len(costs)))]
    loads = [0] * len(shares)
    for key in sorted(costs, key=lambda key: (-costs[key], key)):
        least = loads.index(min(loads))
        shares[least].append(key)
        loads[least] += costs[key]
    return shares


def train_in_processes(
    arguments: Sequence[str], shares: Sequence[Sequence[str]], gpus: Sequence[str], update: Callable[[], None]
) -> None:
    """Train each share in its own process, and wait for all.

    At SIGTERM or SIGINT all processes save and end; further signals are ignored. If a process fails, the others save
    and end, and this process exits with its code: it has printed its error, unless a signal ended it.

    Args:
        arguments: of the train stage.
        gpus: of this machine, as CUDA_VISIBLE_DEVICES names them; process i gets GPU i, in turn.
        update: called at least every 0.2 s times the number of processes, and once more at the end.

    Raises:
        Terminated: a signal arrived, here or in a process; the runs are saved.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        stack.callback(_end_and_wait, processes)
        is_stopped = stack.enter_context(_ending_at_signals(processes))
        for number, keys in enumerate(shares, start=1):
            if is_stopped():
                break
            options = ["--process", str(number), "--parent", str(os.getpid())]
            command = [sys.executable, "-m", _MODULE, *arguments, *options, "--runs", *keys]
            gpu = {"CUDA_VISIBLE_DEVICES": gpus[(number - 1) % len(gpus)]} if gpus else {}
            # In its own session: Ctrl-C in a terminal would otherwise end it without a save.
            processes.append(subprocess.Popen(command, env={**os.environ, **gpu}, start_new_session=True))
            if is_stopped():
                _end(processes[-1:])  # the handler may have come before it was in the list
        codes = _wait(processes, update)
        stopped = is_stopped()
    for number, (process, code) in enumerate(zip(processes, codes, strict=True), start=1):
        if code < 0 and code not in _SAVED:
            end = f"{describe_signal(-code)}; run the same command again, which resumes at the last checkpoint"
            print(f"error: process-{number} (process {process.pid}) {end}", file=sys.stderr, flush=True)
    if failed := [code for code in codes if code not in _SAVED and code != 0]:
        sys.exit(failed[0] if failed[0] > 0 else 128 - failed[0])
    if stopped or any(codes):
        raise Terminated("the runs are saved")


def _wait(processes: Sequence["subprocess.Popen[bytes]"], update: Callable[[], None]) -> list[int]:
    """Return the exit codes, and call `update` meanwhile; after a failure the other processes get SIGTERM."""
    running = {process.pid: process for process in processes}
    while running:
        update()
        for process in list(running.values()):
            try:
                code = process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            del running[process.pid]
            if code != 0 and code not in _SAVED:
                _end(list(running.values()))
    update()
    return [process.wait() for process in processes]


def _end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)


def _end_and_wait(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End the processes, and wait until they have saved: they are killed when this process ends."""
    _end(processes)
    for process in processes:
        process.wait()


@contextmanager
def _ending_at_signals(processes: Sequence["subprocess.Popen[bytes]"]) -> Iterator[Callable[[], bool]]:
    """Send `processes` SIGTERM at the first SIGTERM or SIGINT, and yield a function: whether that has happened."""
    stopped = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        if not stopped.is_set():
            stopped.set()
            _end(processes)

    with signal_handler(end):
        yield stopped.is_set


def main() -> None:
    """Train the given runs of a study, and exit the process; a stage that holds the lock started it."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--study", required=True)
    parser.add_argument("--runs", nargs="+", required=True, help="keys of runs")
    parser.add_argument("--process", required=True, help="number of the process, which names its live metrics")
    parser.add_argument("--parent", type=int, required=True, help="process that started this one")
    add_path_arguments(parser)
    arguments = parser.parse_args()
    # After the death of the stage, no process would hold its lock.
    set_parent_death_signal(signal.SIGKILL)
    # Not every orphan gets process 1 as its parent, and in a container the stage may be process 1.
    if os.getppid() != arguments.parent:
        sys.exit("the stage that started this process is gone")
    with exit_codes():
        silent = make_context("train", "study", arguments, silent=True)
        context = replace(silent, log=RunLog(None, sys.stderr, bars=False))
        with distributed.join_process_group(launch_plan(study_recipe(context)).threads) as world:
            try:
                train_runs(context, world, arguments.runs, live_name=f"process-{arguments.process}")
            except Terminated:
                sys.exit(os.EX_TEMPFAIL)  # without a line: the stage prints one for all its processes


if __name__ == "__main__":
    main()
