"""Run a search of `tune`: read its inputs, compute its key, train its trials and write its outputs."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pipeline.artifacts.prepared import count_planted, load_prepared, planted_note
from pipeline.artifacts.provenance import code_digest, import_closure
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.stage_inputs import stage_inputs
from pipeline.commands.tune.outputs import check_values_are_writable, tuned_text, write_outputs
from pipeline.commands.tune.report import context_switch_text, late_bloomers_text, leaderboard_lines
from pipeline.config.base import Duration
from pipeline.config.params import Params
from pipeline.config.study import PASSIVE_RECIPE_KEYS, PASSIVE_STUDY_KEYS, Study, TrainConfig
from pipeline.config.tuning import Tuning
from pipeline.distributed import World, visible_gpus
from pipeline.errors import InputError
from pipeline.parallel import task_pool
from pipeline.paths import TUNING_FIGURES, DataPaths, WorkPaths
from pipeline.run_log import Progress, RunLog
from pipeline.stages.harness import StageContext, exit_at_sigterm
from pipeline.stages.study_runs import resolve_runs
from pipeline.training.checkpointing import STALE_AFTER_S
from pipeline.training.run_key import machine_info, training_code_digest
from pipeline.training.settings import DatasetInfo
from pipeline.tuning.results import SearchResult
from pipeline.tuning.search import EpochMapFn, Search, count_trials, trials_to_resume
from pipeline.tuning.sources import TrialData, make_trial_data, val_rows
from pipeline.tuning.storage import TrialStorage
from pipeline.tuning.trial import TrainValRows, trial_processes, trial_run
from pipeline.tuning.worker import EpochResult, EpochTask

# Modules that decide a search in addition to the training code: the course of a search, and how a trial is made from
# its values, trained and evaluated.
_DECIDING = frozenset(
    f"pipeline.{name}"
    for name in (
        "config.study", "config.tuning", "runs.execution", "tuning.processes", "tuning.scheduler",
        "tuning.search", "tuning.sources", "tuning.storage", "tuning.trial", "tuning.worker",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SearchInputs:
    """Inputs of one search.

    Attributes:
        rows: training and validation images.
        summary: of the data set.
        source: where training processes read the images.
        identity: of the images, the rows, the training code and the properties of this machine that decide the bits.
    """

    rows: TrainValRows
    summary: DatasetInfo
    source: TrialData
    identity: Mapping[str, Any]


def read_inputs(params: Params, tuning: Tuning, data: DataPaths) -> SearchInputs:
    """Split the first arm of the study into rows to train on and rows flagged `val`.

    Raises:
        InputError: a file is missing or does not fit the others, or no image is flagged.
    """
    check_with_note(data, stage_inputs("train", tuning.study, params, data))
    prepared = load_prepared(data, folder=params.prepare.folder)
    val = val_rows(data)
    if not val.any():
        raise InputError(
            f"{data.manifest('train')}: flags no image `val`, on which trials are evaluated; set prepare.val_size, "
            "such as 0.1, and run `dvc repro`"
        )
    # The arm's rows, as the train stage computes them. They do not depend on the settings, so any settings do.
    study = params.studies[tuning.study]
    minimal = Study(
        filter_network=study.filter_network, models=study.models[:1], arms=study.arms[:1], batch_sizes=(2,),
        relabel_above=study.relabel_above if study.arms[0] == "relabeled" else None,
        learning_rates=(1.0,), weight_decays=(0.0,), seeds=study.seeds[:1], budget=Duration(steps=1),
    )  # fmt: skip
    reduced = params.model_copy(update={"studies": {tuning.study: minimal}, "train": TrainConfig()})
    context = StageContext(
        stage="train", item=tuning.study, params=reduced, data=data, work=WorkPaths(), log=RunLog.silent()
    )  # fmt: skip
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    (run,) = resolve_runs(context, prepared, World(rank=0, size=1, device=device))
    assert run.key is not None, "a batch of two fits every arm"
    job, arm, machine = run.key.job, run.rows, machine_info(device)
    digest = str(job["data"])
    return SearchInputs(
        rows=TrainValRows(train=arm.mask & ~val, val=val, labels=arm.labels),
        summary=DatasetInfo(
            n_classes=len(prepared.class_names),
            image_size=prepared.image_size,
            mean=prepared.mean,
            std=prepared.std,
        ),
        source=make_trial_data(data, image_folder=params.prepare.folder, digest=digest, machine=machine),
        identity={
            "data": digest,  # includes the manifest, which flags rows
            "members": job["members"],
            # Changed labels; without any, searches of earlier versions continue.
            **{key: job[key] for key in ("labels",) if key in job},
            "code": training_code_digest(),
            "machine": machine,
        },
    )


def search_key(params: Params, tuning: Tuning, inputs: SearchInputs) -> str:
    """Return the digest of all inputs of a search, by which a restarted search resumes.

    `parallel` and `round_robin` have the same result, and training pruned trials to the end does not change it.
    Trials use the first values of the study's lists, and the first `tuning.seeds` seeds. Its models, its batch sizes,
    and their budgets decide which values fit.
    """
    tuning_values = tuning.model_dump(mode="json", exclude={"scheduler", "resume_pruned"})
    study = params.studies[tuning.study]
    first: dict[str, Any] = tuning.trial_study(study, {})
    first["recipe"] = {key: value for key, value in first["recipe"].items() if key not in PASSIVE_RECIPE_KEYS}
    # Only where they are set: other searches keep the keys that they had without these.
    also_fitting = {key for key in ("budget_by_batch_size", "equivalent_batch") if getattr(study, key) is not None}
    also_fitting |= {"models"} if len(study.models) > 1 else set()
    inputs_of_result: dict[str, Any] = {
        "tuning": {**tuning_values, "sequential": tuning.scheduler == "sequential"},
        "study": {key: value for key, value in first.items() if key not in PASSIVE_STUDY_KEYS},
        "fitting": study.model_dump(mode="json", include={"batch_sizes", "budget", *also_fitting}),
        "train": params.train.model_dump(mode="json", exclude=set(PASSIVE_RECIPE_KEYS)),
        "inputs": inputs.identity,
        "code": _CODE,
        "optuna": metadata.version("optuna"),
    }
    if tuning.seeds > 1:  # `first` has the first seed alone
        inputs_of_result["seeds"] = list(study.seeds[: tuning.seeds])
    return hashlib.sha256(json.dumps(inputs_of_result, sort_keys=True).encode()).hexdigest()[:24]


def tuning_code() -> str:
    """Return the digest of the syntax trees of the modules that decide a search, without the training code."""
    module = "pipeline.tuning.search"
    closure = frozenset(import_closure(module))
    assert closure >= _DECIDING, f"not imported by {module}: {sorted(_DECIDING - closure)}"
    return code_digest(module, exclude=closure - _DECIDING)


# Computed at import: files may change while a search runs.
_CODE = tuning_code()


def run_search(
    params: Params, text: str, name: str, data: DataPaths, work: WorkPaths, log: RunLog, *, source: str, compared: bool
) -> SearchResult:
    """Run the search `name` to its end and write data/tune/<name>/.

    Args:
        params: with the search.
        text: of the parameter file `source`, as it was when `params` were read.
        name: of the search.
        data: folder of the stages' outputs.
        work: folder of the search's files.
        log: of the search.
        source: the parameter file.
        compared: whether other searches are compared with it, which trains the winner to its last epoch.

    Raises:
        InputError: there are no validation images, the text cannot be edited, all trials failed, or the inputs were
            replaced in the meantime.
        Terminated: the process was asked to stop. The storage has the results so far.
    """
    tuning = params.tuning[name]
    check_values_are_writable(text, tuning, source=source)
    inputs = read_inputs(params, tuning, data)
    folder = work.search(name, search_key(params, tuning, inputs))
    _remove_abandoned(folder)
    if not folder.exists() and (others := len([*folder.parent.glob("*/journal.log")])):
        log.info(
            f"starting over: its parameters, images, code, libraries or kind of device differ from those of {others} "
            f"that started earlier in {folder.parent}; restore them to resume one"
        )
    journal = folder / "journal.log"
    storage = TrialStorage(journal)
    epochs = (count_trials(tuning) * tuning.epochs - len(storage.epoch_times)) * tuning.seeds
    with (
        exit_at_sigterm("the results of the trials are kept"),
        _task_map(params, tuning) as map_epochs,
        # Pruned and failed trials train fewer.
        log.progress(f"tune {name}", epochs, "epochs at most") as progress,
    ):
        search = Search(
            tuning,
            make_run=lambda values: trial_run(params, name, values, inputs.summary, inputs.rows),
            rows=inputs.rows,
            source=inputs.source,
            storage=storage,
            checkpoints=(folder / "checkpoints").resolve(),
            map_tasks=counted(map_epochs, progress),
            log=log,
        )
        outcome = search.run()
        if outcome.winner is None:
            # The next search must try again. A kill between the two lines leaves the journal, so this is repeated.
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            shutil.rmtree(folder)
            n, reason = len(search.values), search.reasons[0]
            raise InputError(f"tuning.{name}: all {n} trials failed, the first for this reason: {reason}")
        finished = search.resume_pruned(trials_to_resume(tuning, outcome, compared=compared))
    result = SearchResult(
        tuning=tuning,
        outcome=outcome,
        values=search.values,
        accuracies=search.accuracies,
        reasons=search.reasons,
        finished=finished,
        failed_afterwards=search.failed_afterwards,
        epochs_afterwards=search.epochs_afterwards,
        epoch_times=storage.epoch_times,
        n_val=int(inputs.rows.val.sum()),
        images=inputs.source.digest,
        journal=journal,
    )
    current = read_inputs(params, tuning, data).identity
    if any(current.get(key) != inputs.identity.get(key) for key in ("data", "members", "labels")):
        raise InputError(
            f"{data.root}: images or the filter's decisions were replaced while {name} ran; run the same command again "
            "to search on the new ones"
        )
    tuned = tuned_text(text, tuning, search.values[outcome.winner], source=source)
    write_outputs(result, params, tuned, name, data)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _task_map(params: Params, tuning: Tuning) -> AbstractContextManager[EpochMapFn]:
    """Return the map over trials: in parallel on Dask's workers, or in this process one after another."""
    if tuning.scheduler == "parallel":
        n_processes = trial_processes(params.studies[tuning.study].effective_recipe(params.train))
        return task_pool(
            params.dask.scheduler, workers=params.dask.workers, threads=1, gpus=split_gpus(visible_gpus(), n_processes),
            on_worker_death=_killed,
        )  # fmt: skip
    return nullcontext(map)


def counted(map_epochs: EpochMapFn, progress: Progress) -> EpochMapFn:
    """Return a map that also counts each epoch when it ends; one whose worker died is trained again."""

    def mapped(function: Callable[[EpochTask], EpochResult], tasks: Iterable[EpochTask]) -> Iterator[EpochResult]:
        for result in map_epochs(function, tasks):
            if not result.killed:
                progress.update()
            yield result

    return mapped


def split_gpus(gpus: Sequence[str], size: int) -> list[str]:
    """Split GPUs into groups of `size`, in the form of CUDA_VISIBLE_DEVICES. Fewer GPUs than `size` form one group."""
    n_groups = max(1, len(gpus) // size)
    return [",".join(gpus[group * size : (group + 1) * size]) for group in range(n_groups)] if gpus else []


def _killed() -> EpochResult:
    # Dask's message names workers; this one gives equal bytes for equal results.
    reason = "every worker that trained it died; give workers more memory or start fewer"
    return EpochResult(accuracy=None, reason=reason, seconds=0.0, killed=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove searches of this name with other parameters, images or code, unused for `STALE_AFTER_S` seconds."""
    others = [other for other in folder.parent.glob("*") if other != folder]
    for other in others:
        # Appending to a file does not change the time of its folder.
        journal = other / "journal.log"
        if (journal if journal.exists() else other).stat().st_mtime <= time.time() - STALE_AFTER_S:
            shutil.rmtree(other)


def outcome_lines(result: SearchResult, name: str, data: DataPaths) -> list[str]:
    """Return the outcome of a search, whose outputs are written, as lines of text."""
    summary, epochs = result.summary(), result.tuning.epochs
    trials, winner = summary["trials"], summary["winner"]
    values = ", ".join(f"{key}: {json.dumps(value)}" for key, value in winner["values"].items())
    lines = [
        f"trial {winner['trial']} wins with {values}",
        f"its accuracy on the val rows is {winner['accuracy']:.4f}, after {winner['epochs']} epochs",
        f"{trials} trials: {summary['eliminated']} pruned, {summary['failed']} failed",
        f"{summary['epochs']} epochs of {summary['epochs_allowed']} trained, {summary['saved_share']:.0%} saved",
    ]
    if winner["epochs"] < epochs and winner["accuracy_at_end"] is not None:
        lines[1] += f", and {winner['accuracy_at_end']:.4f} after all {epochs}"
    if summary["epochs_lost"]:
        lines[3] += f" by the rule, {summary['epochs_lost']} not reached by failed trials"
    if summary["epochs_afterwards"]:
        lines[3] += f"; {summary['epochs_afterwards']} more were trained afterwards and are not counted"
    if (n_planted := count_planted(data)) is not None:
        lines.append(planted_note(n_planted))
    figures = [path for figure in TUNING_FIGURES if (path := data.tuning_figure(name, figure)).exists()]
    return [
        *lines,
        late_bloomers_text(summary),
        context_switch_text(summary),
        "",
        *leaderboard_lines(result),
        "",
        f"all trials: {data.leaderboard(name)}",
        f"charts: {', '.join(map(str, [data.tuning_page(name), *figures]))}",
        f"to use it: cp {data.tuned(name)} params.yaml",
        # The dashboard could write to the file, with which the search resumes.
        f"to browse the trials: cp {result.journal} copy.log && optuna-dashboard copy.log",
    ]
