"""`python -m pipeline runs import FOLDER`: import runs that another machine trained.

A node without DVC trains a study by `torchrun -m pipeline.stages.train --study NAME`, which leaves the finished runs in
its work folder. `dvc repro` then uses the imported runs like those of this machine; the table of the study names the
hardware of each. The plans of the studies are imported too, with their dates. Accuracies are computed again from the
test images that a run got right: top-1 always, balanced accuracy where these images are prepared here.

`runs pack results.tar.xz` writes the inputs of the report, without images, features and weights. Unpacked in another
folder of the project, with the same images, it gives the same report:

    tar xf results.tar.xz
    python -m pipeline.stages.prepare
    python -m pipeline.stages.report

With --ledger it also has the runs of the studies as they were recorded, so that `verify` can train them again and
`runs import` takes them. They have no weights: a study that keeps weights trains those runs again.
"""

import argparse
import io
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from pipeline.artifacts.files import atomic_path
from pipeline.artifacts.plans import copy_registered_plans, plan_files
from pipeline.artifacts.prepared import count_planted, planted_note, prepared_digests, prepared_files
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.resources import read_resources
from pipeline.artifacts.stage_inputs import report_inputs
from pipeline.artifacts.tables import read_parquet
from pipeline.commands import command_parser, folder_options
from pipeline.commands.plan.size import thread_count
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.instruction_set import limit_instructions
from pipeline.locks import file_lock
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reporting.inputs import report_input_files, stage_names
from pipeline.run_log import stderr_log
from pipeline.runs.ledger import Ledger
from pipeline.runs.record import CHECKED_FILES, CHECKSUMS, WEIGHTS, lacks_weights
from pipeline.training.code_families import code_name
from pipeline.training.run_key import RunKey, machine_info, matches_current_code, small_images_code, worker_machine_info

_NOTE = Path("labels_changed_on_purpose.txt")


def pack(target: Path, *, params: Path, data: DataPaths, work: WorkPaths, ledger: bool = False) -> int:
    """Write the inputs of the report to `target`, a tar archive compressed by xz.

    Names in it are relative to the project's folder. It includes the plans of the studies and has no images, features
    or weights: `prepare` makes the images again. Equal results give equal bytes.
    A note is added if labels were changed on purpose.

    Args:
        ledger: include the records of the studies' runs, with their keys, hash chains and dates.

    Returns:
        The number of files.

    Raises:
        InputError: a file of a network or study in the parameter file is missing.
    """
    config = load_params(params, accept_old_keys=True)
    files = {Path("data") / path.relative_to(data.root): path for path in report_input_files(config, data)}
    missing = sorted(str(path) for path in files.values() if not path.exists())
    if missing:
        raise InputError(f"{missing[0]}: missing; run `dvc repro`, which makes the inputs of the report")
    # A damaged file would be packed as if it were a result.
    check_with_note(data, report_inputs(config, data))
    records = {name: work.resources(name) for name in stage_names(config)}
    sound = read_resources(records, partial(print, file=sys.stderr))
    files |= {Path(".work/resources") / path.name: path for name, path in records.items() if name in sound}
    plans = [path for name in config.studies for path in plan_files(work.plans(name))]
    recorded = _recorded_files(config, data, work) if ledger else []
    files |= {Path(".work") / path.relative_to(work.root): path for path in [*plans, *recorded]}
    files[Path("params.yaml")] = params
    n_planted = count_planted(data)
    notes = {} if n_planted is None else {_NOTE: f"{planted_note(n_planted)}\n".encode()}
    names = sorted([*files, *notes])
    with (
        atomic_path(target) as temporary,
        tarfile.open(temporary, "w:xz") as archive,
        stderr_log(None).progress("runs pack", len(names), "files") as progress,
    ):
        for name in names:
            content = notes[name] if name in notes else files[name].read_bytes()
            entry = tarfile.TarInfo(name.as_posix())  # no owner, no time
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
            progress.update()
    return len(names)


def _recorded_files(params: Params, data: DataPaths, work: WorkPaths) -> list[Path]:
    """Return the files of the studies' runs in the ledger, without weights."""
    files = []
    for name in params.studies:
        for key in sorted(set(read_parquet(data.runs(name), ["fingerprint"])["fingerprint"].to_pylist()) - {""}):
            folder = Ledger(work.ledger).folder(key)
            if not folder.is_dir():
                raise InputError(f"{folder}: missing, a run of study {name}; run `dvc repro`, or leave --ledger out")
            names = [CHECKSUMS, *(file for file in CHECKED_FILES if file != WEIGHTS)]
            files += [folder / file for file in names if (folder / file).exists()]
    return files


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("runs", __doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    all_options = folder_options("params", "data", "work")
    import_parser = actions.add_parser(
        "import", help="copy finished runs from another work folder", parents=[all_options]
    )
    import_parser.add_argument("folder", type=Path, help="the other node's work folder (.work), or a copy of it")
    pack_parser = actions.add_parser("pack", help="write the inputs of the report to one file", parents=[all_options])
    pack_parser.add_argument("file", type=Path, help="ends in .tar.xz")
    pack_parser.add_argument("--ledger", action="store_true", help="include the recorded runs, for `verify --retrain`")
    return parser


def main(argv: Sequence[str]) -> int:
    """Import the runs that this work folder lacks, or write an archive.

    Returns:
        0.

    Raises:
        InputError: see `import_runs` and `pack`; or the archive's name does not end in .tar.xz.
    """
    arguments = make_parser().parse_args(argv)
    if arguments.action == "import":
        params = load_params(arguments.params, accept_old_keys=True)
        limit_instructions(params.train.isa)
        import_runs(arguments.folder, arguments.work, params, DataPaths(root=arguments.data))
        return 0
    if not arguments.file.name.endswith(".tar.xz"):
        raise InputError(f"{arguments.file}: the archive is compressed by xz; give a name that ends in .tar.xz")
    data, work = DataPaths(root=arguments.data), WorkPaths(root=arguments.work)
    count = pack(arguments.file, params=arguments.params, data=data, work=work, ledger=arguments.ledger)
    print(f"{arguments.file}: {count} files, {arguments.file.stat().st_size / 1e6:.1f} MB")
    if (n_planted := count_planted(data)) is not None:
        print(planted_note(n_planted))
    return 0


def import_runs(source: Path, target: Path, params: Params, data: DataPaths) -> None:
    """Copy the runs of one work folder to another, and print how many.

    A run on the images and labels of `data` counts, also if another version of pyarrow wrote their files. An entry of
    an earlier version, without a digest of the values, needs files of equal bytes and gets the digest. A run's balanced
    accuracy must be that of these labels.

    Args:
        source: work folder of the other machine.
        target: work folder of this machine.
        params: parameters of this project, whose studies decide the threads that a run is looked up with.
        data: of this project; nothing prepared in it leaves the runs to the data of their keys.

    Raises:
        InputError: there are no runs, one is damaged or contradicts the labels, none is of this version of the code, or
            a study is being trained here.
    """
    source_ledger = WorkPaths(root=source).ledger
    if not source_ledger.is_dir():
        raise InputError(
            f"{source}: has no {source_ledger.name}/ with finished runs; give the other node's work folder"
        )
    work = WorkPaths(root=target)
    ours, other = Ledger(work.ledger), Ledger(source_ledger)
    run_keys = list(other.run_keys(to_import=True))
    usable = [key for key in run_keys if matches_current_code(key)]
    if run_keys and not usable:
        raise InputError(
            f"{source}: its {len(run_keys)} runs were trained by another version of the training code, and would be "
            "trained again; check out the same commit on both machines, or one that gives equal bits"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # The train stage writes to the same ledger.
    prepared = _read_prepared(data)
    imported = []
    with (
        file_lock(work.lock("train"), "train or runs import"),
        stderr_log(None).progress("runs import", len(usable), "runs") as progress,
    ):
        for key in usable:
            if _import_run(ours, other, key, params, device, prepared):
                imported.append(key)
            progress.update()
        plans = copy_registered_plans(WorkPaths(root=source).plans_folder, work.plans_folder)
    n_new = len(imported)
    print(f"{source}: {len(run_keys)} runs, {n_new} imported, {len(usable) - n_new} known already", end="")
    n_other_code = len(run_keys) - len(usable)
    print(f", {n_other_code} of another version of the training code left out" if n_other_code else "")
    if n_lacking := sum(lacks_weights(other.folder(key.fingerprint)) for key in imported):
        print(
            f"{source}: {n_lacking} of the imported runs came without their weights; a study that keeps the weights of "
            "such a run trains it again"
        )
    if plans:
        print(f"{source}: {plans} registered plans imported")


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The images and labels of this project.

    Attributes:
        digest: of their files.
        content: of their values.
        test_labels: (n_test,).
    """

    digest: str
    content: str
    test_labels: NDArray[np.int64]

    def has_data_of(self, key: RunKey) -> bool:
        """Return whether a run was trained on them; runs of earlier versions recorded the digest of the files alone."""
        return key.content == self.content or key.job.get("data") == self.digest


def _read_prepared(data: DataPaths) -> _Prepared | None:
    """Return what is prepared in this project; None if nothing is."""
    if not all(path.exists() for path in prepared_files(data)):
        return None
    labels = read_parquet(data.manifest("test"), {"label": pa.int64()})["label"].to_numpy()
    digest, content = prepared_digests(data)
    return _Prepared(digest=digest, content=content, test_labels=labels)


def _import_run(
    ours: Ledger, other: Ledger, key: RunKey, params: Params, device: torch.device, prepared: _Prepared | None
) -> bool:
    """Copy a run under the keys by which `dvc repro` looks for it here; returns whether one was new."""
    here = prepared if prepared is not None and prepared.has_data_of(key) else None
    job = _job_here(key, device, here)
    content = key.content if here is None else here.content
    local_keys = [replace(key, job=job, machine=machine, content=content) for machine in _machines(key, params, device)]
    labels = None if here is None else here.test_labels
    new = [ours.import_run(other, key, local_key, labels=labels) for local_key in local_keys]
    return any(new)


def _job_here(key: RunKey, device: torch.device, prepared: _Prepared | None) -> dict[str, Any]:
    """Return the job of a run as the train stage looks for it here."""
    # Only runs on CPUs have a number for small images.
    job = {name: value for name, value in key.job.items() if name != "small_images_code"}
    job |= {"code": _code_family(key), **small_images_code(_settings(key), on_cpu=device.type == "cpu")}
    if prepared is not None:
        job["data"] = prepared.digest
    return job


def _code_family(key: RunKey) -> str:
    """Return the code family's name here, whose list of families may be newer than the run."""
    return code_name(str(key.job.get("code")), _settings(key))


def _settings(key: RunKey) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = key.job.get("settings", {})
    return settings


def _machines(key: RunKey, params: Params, device: torch.device) -> list[dict[str, Any]]:
    """Return this machine, once for each number of CPU threads that the studies of `params` may use."""
    if device.type == "cuda":
        return [machine_info(device)]
    pinned: int | None = _settings(key).get("threads")
    recipes = [study.effective_recipe(params.train) for study in params.studies.values()]
    counts = {pinned} if pinned else {thread_count(recipe) for recipe in recipes}
    return [worker_machine_info(device, count) for count in sorted(counts)]
