"""Run a search: inputs, identity, trials."""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pipeline.artifacts.prepared import count_planted, load_prepared, planted_note
from pipeline.artifacts.provenance import code_digest, import_closure
from pipeline.commands.tuning.outputs import check_values_are_writable, tuned_text, write_outputs
from pipeline.commands.tuning.report import context_switch_text, late_bloomers_text
from pipeline.config.base import Duration
from pipeline.config.params import Params
from pipeline.config.study import Study, TrainConfig
from pipeline.config.tuning import Tuning
from pipeline.distributed import World
from pipeline.errors import InputError, Terminated
from pipeline.parallel import task_pool
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.stages.harness import StageContext
from pipeline.stages.train import resolve_runs
from pipeline.training.checkpointing import STALE_AFTER_S
from pipeline.training.run_key import machine_info, training_code_digest
from pipeline.training.settings import DatasetInfo
from pipeline.tuning.results import SearchResult
from pipeline.tuning.search import EpochMapFn, Search, trials_to_resume
from pipeline.tuning.sources import TrialData, make_trial_data, val_rows
from pipeline.tuning.storage import TrialStorage
from pipeline.tuning.trial import TrainValRows, trial_processes, trial_run
from pipeline.tuning.worker import EpochResult

# What a search trains on, and what it judges its trials on.


@dataclass(frozen=True, kw_only=True)
class SearchInputs:
    """Of one search.

    Attributes:
        identity: of the images, the rows, the training code and what decides the bits on this machine.
    """

    rows: TrainValRows
    summary: DatasetInfo
    source: TrialData
    identity: Mapping[str, Any]


def read_inputs(params: Params, tuning: Tuning, data: DataPaths) -> SearchInputs:
    """The first arm of the study, parted into rows to train on and rows flagged `val`.

    Raises:
        InputError: a file is missing or does not fit the others, or no image is flagged.
    """
    prepared = load_prepared(data, folder=params.prepare.folder)
    judged = val_rows(data)
    if not judged.any():
        raise InputError(
            f"{data.manifest('train')}: flags no image `val`, by which trials are judged; give prepare.val_size, "
            "such as 0.1, and run `dvc repro`"
        )
    # The arm's rows, as the train stage finds them; of any settings, which do not change them.
    study = params.studies[tuning.study]
    asked = Study(
        filter_network=study.filter_network, models=study.models[:1], arms=study.arms[:1], batch_sizes=(2,),
        learning_rates=(1.0,), weight_decays=(0.0,), seeds=study.seeds[:1], budget=Duration(steps=1),
    )  # fmt: skip
    known = params.model_copy(update={"studies": {tuning.study: asked}, "train": TrainConfig()})
    context = StageContext(
        stage="train", item=tuning.study, params=known, data=data, work=WorkPaths(), log=RunLog.silent()
    )  # fmt: skip
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _, (arm,), (identity,) = resolve_runs(context, prepared, World(rank=0, count=1, device=device))
    assert identity is not None, "a batch of two fits every arm"
    digest, machine = str(identity.job["data"]), machine_info(device)
    return SearchInputs(
        rows=TrainValRows(trained=arm & ~judged, judged=judged),
        summary=DatasetInfo(
            n_classes=len(prepared.class_names),
            image_size=prepared.image_size,
            mean=prepared.mean,
            std=prepared.std,
        ),
        source=make_trial_data(data, image_folder=params.prepare.folder, digest=digest, machine=machine),
        identity={
            "data": digest,  # the manifest, in which rows are flagged, is in it
            "members": identity.job["members"],
            "code": training_code_digest(),
            "machine": machine,
        },
    )


# What a search is recognised by when it is started again.


# Beside the training code, which is in the identity of the inputs: the course of a search, and how a trial comes from
# its values, is trained and is judged.
_DECIDING = frozenset(
    f"pipeline.{name}"
    for name in (
        "config.study", "config.tuning", "training.cells", "tuning.halving", "tuning.processes", "tuning.scheduler",
        "tuning.search", "tuning.sources", "tuning.storage", "tuning.trial", "tuning.worker",
    )
)  # fmt: skip
# They say how a run is done, and no trial's accuracy.
_PASSIVE_KEYS = ("checkpoint", "timeout_seconds", "workers")
_PASSIVE_STUDY_KEYS = ("paper_figure", "keep_weights", "accuracy_every", "needs", "plan")


def search_key(params: Params, tuning: Tuning, inputs: SearchInputs) -> str:
    """Of all that decides a search; the lockstep ways have one result, and finishing some trials changes none.

    Of the study's lists the trials take the first values; its batch sizes and its budget say which values it can take.
    """
    settled = tuning.model_dump(mode="json", exclude={"scheduler", "resume_pruned"})
    study = params.studies[tuning.study]
    first: dict[str, Any] = tuning.trial_study(study, {})
    first["recipe"] = {key: value for key, value in first["recipe"].items() if key not in _PASSIVE_KEYS}
    decides = {
        "tuning": {**settled, "sequential": tuning.scheduler == "sequential"},
        "study": {key: value for key, value in first.items() if key not in _PASSIVE_STUDY_KEYS},
        "fitting": study.model_dump(mode="json", include={"batch_sizes", "budget"}),
        "train": params.train.model_dump(mode="json", exclude={*_PASSIVE_KEYS}),
        "inputs": inputs.identity,
        "code": _CODE,
        "optuna": metadata.version("optuna"),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]


def tuning_code() -> str:
    """Digest of the syntax trees of the modules that decide a search beside the training code."""
    module = "pipeline.tuning.search"
    return code_digest(module, exclude=frozenset(import_closure(module)) - _DECIDING)


# Taken when the code is loaded: files may change while a search runs.
_CODE = tuning_code()


# A search with its inputs, its place on disk, and what it leaves for people.


def run_search(
    params: Params, text: str, name: str, data: DataPaths, work: WorkPaths, log: RunLog, *, source: str, compared: bool
) -> SearchResult:
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
    check_values_are_writable(text, tuning, source=source)
    inputs = read_inputs(params, tuning, data)
    place = work.search(name, search_key(params, tuning, inputs))
    _remove_abandoned(place)
    if not place.exists() and (others := len([*place.parent.glob("*/journal.log")])):
        log.info(
            f"begins anew: its parameters, images, code, libraries or kind of device are not those of {others} earlier "
            f"in {place.parent}, which with them would go on"
        )
    journal = TrialStorage(place / "journal.log")
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
        finished = search.finish(trials_to_resume(tuning, outcome, compared=compared))
    found = SearchResult(
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


def _mapping(params: Params, tuning: Tuning) -> AbstractContextManager[EpochMapFn]:
    """Where trials train: on Dask's workers side by side, or here one after another."""
    if tuning.scheduler == "parallel":
        each = trial_processes(params.studies[tuning.study].effective_recipe(params.train))
        return task_pool(
            params.dask.scheduler, workers=params.dask.workers, threads=1, gpus=split_gpus(visible_gpus(), each),
            on_worker_death=_killed,
        )  # fmt: skip
    return nullcontext(map)


def split_gpus(gpus: Sequence[str], each: int) -> list[str]:
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
        if (journal if journal.exists() else other).stat().st_mtime <= time.time() - STALE_AFTER_S:
            shutil.rmtree(other)


def outcome_lines(found: SearchResult, name: str, data: DataPaths) -> list[str]:
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
        late_bloomers_text(summary),
        context_switch_text(summary),
        f"to use it: cp {data.tuned(name)} params.yaml",
    ]
