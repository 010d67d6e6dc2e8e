"""A search with its inputs, its place on disk, and what it leaves for people."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from pipeline.artifacts.planted import count_planted, planted_note
from pipeline.commands.tuning.identity import fingerprint
from pipeline.commands.tuning.inputs import read_inputs
from pipeline.commands.tuning.outputs import check_can_be_written, tuned_text, write_outputs
from pipeline.commands.tuning.wording import late_bloomers_said, switching_said
from pipeline.config.params import Params
from pipeline.config.tuning import Tuning
from pipeline.errors import InputError, Terminated
from pipeline.fanout import fan_out
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.training.checkpoints import ABANDONED_S
from pipeline.tuning.epoch import EpochResult
from pipeline.tuning.journal import Journal
from pipeline.tuning.results import Found
from pipeline.tuning.search import Map, Search, to_finish
from pipeline.tuning.trial import asked_processes, trial_run


def run_search(
    params: Params, text: str, name: str, data: DataPaths, work: WorkPaths, log: RunLog, *, source: str, compared: bool
) -> Found:
    """Take the search `name` to its end and write data/tune/<name>/.

    Args:
        text: of the parameter file `source`, as it was when `params` were read.
        compared: with other searches, for which the winner is trained to its last epoch.

    Raises:
        InputError: there are no images to judge trials on, the text is written in a way that cannot be edited, all
            trials failed, or the inputs were replaced in the meantime.
        Terminated: SIGTERM came; what was found is in the journal.
    """
    tuning = params.tuning[name]
    check_can_be_written(text, tuning, source=source)
    inputs = read_inputs(params, tuning, data)
    place = work.search(name, fingerprint(params, tuning, inputs))
    _remove_abandoned(place)
    if not place.exists() and (others := len([*place.parent.glob("*/journal.log")])):
        log.info(
            f"begins anew: its parameters, images, code, libraries or kind of device are not those of {others} earlier "
            f"in {place.parent}, which with them would go on"
        )
    journal = Journal(place / "journal.log")
    with _ended_by_sigterm(), _mapping(params, tuning) as map_tasks:
        search = Search(
            tuning,
            run_of=lambda values: trial_run(params, name, values, inputs.summary, inputs.rows),
            rows=inputs.rows,
            source=inputs.source,
            journal=journal,
            checkpoints=(place / "checkpoints").resolve(),
            map_tasks=map_tasks,
            log=log,
        )
        outcome = search.run()
        if outcome.winner is None:
            # Whatever it was, the next search is not to take it for granted. A kill in between leaves the journal, by
            # which this is done again.
            shutil.rmtree(place / "checkpoints", ignore_errors=True)
            shutil.rmtree(place)
            n, reason = len(search.values), search.reasons[0]
            raise InputError(f"tuning.{name}: all {n} trials failed, the first for this reason: {reason}")
        finished = search.finish(to_finish(tuning, outcome, compared=compared))
    found = Found(
        tuning=tuning,
        outcome=outcome,
        values=search.values,
        accuracies=search.accuracies,
        reasons=search.reasons,
        finished=finished,
        failed_afterwards=search.failed_afterwards,
        epochs_afterwards=search.epochs_afterwards,
        switching=journal.switching,
        n_judged=int(inputs.rows.judged.sum()),
        images=inputs.source.digest,
    )
    now = read_inputs(params, tuning, data).identity
    if any(now[key] != inputs.identity[key] for key in ("data", "members")):
        raise InputError(
            f"{data.root}: images or the filter's choice were replaced while {name} was searched on those before; run "
            "the same command again, which searches on these"
        )
    tuned = tuned_text(text, tuning, search.values[outcome.winner], source=source)
    write_outputs(found, params, tuned, name, data)
    shutil.rmtree(place / "checkpoints", ignore_errors=True)
    return found


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Whoever trains, this process or workers, SIGTERM ends the block; a run in this process saves its state first."""

    def end(*_: object) -> None:
        raise Terminated("what the trials have reached is kept")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _mapping(params: Params, tuning: Tuning) -> AbstractContextManager[Map]:
    """Where trials train: on Dask's workers side by side, or here one after another."""
    if tuning.way == "parallel":
        each = asked_processes(params.studies[tuning.study].effective_recipe(params.train))
        return fan_out(
            params.dask.scheduler, workers=params.dask.workers, threads=1, gpus=shares_of(visible_gpus(), each),
            if_killed=_killed,
        )  # fmt: skip
    return nullcontext(map)


def shares_of(gpus: Sequence[str], each: int) -> list[str]:
    """Of `each` GPUs, as CUDA_VISIBLE_DEVICES takes them; too few for one share are a share all the same."""
    whole = max(1, len(gpus) // each)
    return [",".join(gpus[share * each : (share + 1) * each]) for share in range(whole)] if gpus else []


def visible_gpus() -> list[str]:
    """Those that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(index) for index in range(count)]


def _killed() -> EpochResult:
    # Without Dask's own words, which name workers: equal results are equal bytes.
    reason = "every worker that trained it died; give workers more memory or start fewer"
    return EpochResult(accuracy=None, reason=reason, seconds=0.0, killed=True)


def _remove_abandoned(place: Path) -> None:
    """Searches by this name with other parameters, images or code that nobody has gone on with for long."""
    others = [other for other in place.parent.glob("*") if other != place]
    for other in others:
        # Adding to a file does not touch its folder.
        journal = other / "journal.log"
        if (journal if journal.exists() else other).stat().st_mtime <= time.time() - ABANDONED_S:
            shutil.rmtree(other)


def outcome_said(found: Found, name: str, data: DataPaths) -> list[str]:
    """What came out, in some lines."""
    summary, epochs = found.summary(), found.tuning.epochs
    trials, winner = summary["trials"], summary["winner"]
    values = ", ".join(f"{key}: {json.dumps(value)}" for key, value in winner["values"].items())
    lines = [
        f"trial {winner['trial']} wins with {values}",
        f"its accuracy on the val rows is {winner['accuracy']:.4f}, after {winner['epochs']} epochs",
        f"{trials} trials: {summary['eliminated']} eliminated, {summary['failed']} failed",
        f"{summary['epochs']} epochs of {summary['epochs_allowed']} trained, {summary['saved_share']:.0%} saved",
    ]
    if winner["epochs"] < epochs and winner["accuracy_at_end"] is not None:
        lines[1] += f", and {winner['accuracy_at_end']:.4f} after all {epochs}"
    if summary["epochs_lost"]:
        lines[3] += f" by the rule, {summary['epochs_lost']} not reached by failed trials"
    if summary["epochs_afterwards"]:
        lines[3] += f"; {summary['epochs_afterwards']} more came afterwards, which are not counted in that"
    if (n_planted := count_planted(data)) is not None:
        lines.append(planted_note(n_planted))
    return [
        *lines,
        late_bloomers_said(summary),
        switching_said(summary),
        f"to use it: cp {data.tuned(name)} params.yaml",
    ]
