"""A search with its inputs, its place on disk, and what it leaves for people."""

import hashlib
import json
import shutil
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from pathlib import Path
from statistics import median

from pipeline.artifacts.code import code_digest
from pipeline.commands.tuning.inputs import Inputs, read_inputs
from pipeline.commands.tuning.outputs import check_can_be_written, tuned_text, write_outputs
from pipeline.config.params import Params
from pipeline.config.tuning import Tuning
from pipeline.errors import InputError
from pipeline.fanout import fan_out
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.training.checkpoints import ABANDONED_S
from pipeline.tuning.advance import EpochResult
from pipeline.tuning.journal import Journal
from pipeline.tuning.results import Found
from pipeline.tuning.search import Map, Search, drawn_to_finish
from pipeline.tuning.trial import trial_run


def run_search(
    params: Params, text: str, name: str, data: DataPaths, work: WorkPaths, log: RunLog, *, source: str
) -> list[str]:
    """Take the search `name` to its end, write data/tune/<name>/ and say what came out.

    Args:
        text: of the parameter file `source`, as it was when `params` were read.

    Raises:
        InputError: there are no images to judge trials on, the text is written in a way that cannot be edited, or all
            trials failed.
    """
    tuning = params.tuning[name]
    check_can_be_written(text, tuning, source=source)
    inputs = read_inputs(params, tuning, data)
    place = work.search(name, _fingerprint(params, tuning, inputs))
    _remove_abandoned(place)
    with _mapping(params, tuning) as map_tasks:
        search = Search(
            tuning,
            run_of=lambda values: trial_run(params, name, values, inputs.summary, inputs.rows),
            rows=inputs.rows,
            source=inputs.source,
            journal=Journal(place / "journal.log"),
            checkpoints=(place / "checkpoints").resolve(),
            map_tasks=map_tasks,
            log=log,
        )
        outcome = search.run()
        if outcome.winner is None:
            # Whatever it was, the next search is not to take it for granted.
            shutil.rmtree(place)
            n, reason = len(search.values), search.reasons[0]
            raise InputError(f"tuning.{name}: all {n} trials failed, the first for this reason: {reason}")
        drawn = drawn_to_finish(tuning, outcome)
        finished = search.finish([outcome.winner, *drawn]) if drawn else {}
    found = Found(
        tuning=tuning,
        outcome=outcome,
        values=search.values,
        accuracies=search.accuracies,
        reasons=search.reasons,
        finished=finished,
    )
    tuned = tuned_text(text, tuning, search.values[outcome.winner], source=source)
    write_outputs(found, params, tuned, name, data)
    shutil.rmtree(place / "checkpoints", ignore_errors=True)
    return [*_said(found, name, data), *_switching(search)]


def _mapping(params: Params, tuning: Tuning) -> AbstractContextManager[Map]:
    """Where trials train: on Dask's workers side by side, or here one after another."""
    if tuning.way == "parallel":
        return fan_out(params.dask.scheduler, workers=params.dask.workers, threads=1, if_killed=_killed)
    return nullcontext(map)


def _killed(reason: str) -> EpochResult:
    return EpochResult(accuracy=None, reason=reason, seconds=0.0, killed=True)


def _fingerprint(params: Params, tuning: Tuning, inputs: Inputs) -> str:
    """Of all that decides a search; the lockstep ways have one result, and finishing some trials changes none."""
    settled = tuning.model_dump(mode="json", exclude={"way", "finish"})
    decides = {
        "tuning": {**settled, "sequential": tuning.way == "sequential"},
        "study": params.studies[tuning.study].model_dump(mode="json"),
        "train": params.train.model_dump(mode="json"),
        "inputs": inputs.identity,
        "code": [code_digest(f"pipeline.tuning.{module}") for module in ("race", "sampling")],
        "optuna": metadata.version("optuna"),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]


def _remove_abandoned(place: Path) -> None:
    """Searches by this name with other parameters, images or code that nobody has gone on with for long."""
    others = [other for other in place.parent.glob("*") if other != place]
    for other in others:
        if other.stat().st_mtime <= time.time() - ABANDONED_S:
            shutil.rmtree(other)


def _said(found: Found, name: str, data: DataPaths) -> list[str]:
    summary, epochs = found.summary(), found.tuning.epochs
    trials, winner = summary["trials"], summary["winner"]
    values = ", ".join(f"{key}: {json.dumps(value)}" for key, value in winner["values"].items())
    lines = [
        f"trial {winner['trial']} wins with {values}",
        f"its accuracy on the val rows is {winner['accuracy']:.4f}, after {winner['epochs']} epochs",
        f"{trials} trials: {summary['eliminated']} eliminated, {summary['failed']} failed",
        f"{summary['epochs']} epochs of {trials * epochs} trained, {summary['saved_share']:.0%} saved",
    ]
    if sampled := summary["finished_afterwards"]:
        late = len(summary["late_bloomers"])
        lines.append(f"of {len(sampled)} eliminated trials trained to the end, {late} overtook the winner")
    return [*lines, f"to use it: cp {data.tuned(name)} params.yaml"]


def _switching(search: Search) -> list[str]:
    """What it cost that trials train an epoch at a time; nothing if all was known before."""
    if not search.timings:
        return []
    n, seconds = len(search.timings), sum(one.seconds for one in search.timings)
    # The first of each process starts libraries up too.
    switching = median(one.switch_seconds for one in search.timings)
    return [f"{n} epochs in {seconds:.1f} s of work; switching between trials took {switching:.2f} s each, the median"]
