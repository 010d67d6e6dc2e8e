"""`python -m pipeline runs import FOLDER`: bring in cells that were trained elsewhere.

A node without DVC trains a study by `torchrun -m pipeline.stages.train --study NAME`, which leaves
its finished cells in its work folder. Once they are imported, `dvc repro` uses them as its own; the
table of the study says on what they were trained. The plans of studies come with them, with their dates.

`runs pack results.tar.xz` writes what the report is made of, without images, features and weights. Unpacked in another
folder of the project, with the same images, it gives the report again:

    tar xf results.tar.xz
    python -m pipeline.stages.prepare
    python -m pipeline.stages.report
"""

import argparse
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.artifacts.files import atomic_path
from pipeline.artifacts.plans import copy_registered_plans, plan_files
from pipeline.commands import command_parser, folder_options
from pipeline.commands.planning.size import thread_count
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reporting.inputs import report_input_files, stage_names
from pipeline.stages.harness import file_lock
from pipeline.training.code_families import code_name
from pipeline.training.result_cache import RunCache
from pipeline.training.run_key import RunKey, machine_info, training_code_digest, worker_machine_info


def pack(target: Path, *, params: Path, data: DataPaths, work: WorkPaths) -> int:
    """Write `target`, a tar archive compressed by xz whose names are those of a project's own folder.

    It holds no images, features or weights: `prepare` makes the images again. The plans of the studies are in it.
    Packed twice it has the same bytes.

    Returns:
        The number of files.

    Raises:
        InputError: a file of a network or study of the parameter file is missing.
    """
    chosen = load_params(params, accept_old_keys=True)
    files = {Path("data") / path.relative_to(data.root): path for path in report_input_files(chosen, data)}
    missing = sorted(str(path) for path in files.values() if not path.exists())
    if missing:
        raise InputError(f"{missing[0]}: missing; run `dvc repro`, which makes what the report is made of")
    records = {
        Path(".work/resources") / work.resources(name).name: work.resources(name) for name in stage_names(chosen)
    }
    files |= {name: path for name, path in records.items() if path.exists()}
    plans = [path for name in chosen.studies for path in plan_files(work.plans(name))]
    files |= {Path(".work") / path.relative_to(work.root): path for path in plans}
    files[Path("params.yaml")] = params
    with atomic_path(target) as temporary, tarfile.open(temporary, "w:xz") as archive:
        for name in sorted(files):
            content = files[name].read_bytes()
            entry = tarfile.TarInfo(name.as_posix())  # no owner, no time
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return len(files)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("runs", __doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    here, everything = folder_options("params", "work"), folder_options("params", "data", "work")
    importing = actions.add_parser("import", help="copy finished cells from another work folder", parents=[here])
    importing.add_argument("folder", type=Path, help="the other node's work folder (.work), or a copy of it")
    packing = actions.add_parser("pack", help="write what the report is made of to one file", parents=[everything])
    packing.add_argument("file", type=Path, help="ends in .tar.xz")
    return parser


def main(argv: Sequence[str]) -> int:
    """Copy what the work folder given has and this one does not, or write an archive."""
    arguments = make_parser().parse_args(argv)
    if arguments.action == "import":
        import_runs(arguments.folder, arguments.work, load_params(arguments.params, accept_old_keys=True))
        return 0
    if not arguments.file.name.endswith(".tar.xz"):
        raise InputError(f"{arguments.file}: gets a tar archive compressed by xz; give a name that ends in .tar.xz")
    data, work = DataPaths(root=arguments.data), WorkPaths(root=arguments.work)
    count = pack(arguments.file, params=arguments.params, data=data, work=work)
    print(f"{arguments.file}: {count} files, {arguments.file.stat().st_size / 1e6:.1f} MB")
    return 0


def import_runs(source: Path, target: Path, params: Params) -> None:
    """Copy the cells of one work folder to another, and say how many.

    Raises:
        InputError: there are none, one is damaged, none is of this version of the code, or a study
            is being trained here.
    """
    theirs = WorkPaths(root=source).run_cache
    if not theirs.is_dir():
        raise InputError(f"{source}: has no {theirs.name}/ with finished cells; give the work folder of the other node")
    here = WorkPaths(root=target)
    ours, other = RunCache(here.run_cache), RunCache(theirs)
    found = list(other.run_keys())
    usable = [
        identity
        for identity in found
        if _code_family(identity) == code_name(training_code_digest(), _settings(identity))
    ]
    if found and not usable:
        raise InputError(
            f"{source}: its {len(found)} cells were trained by another version of the training code, and would be "
            "trained again; check out the same commit on both machines, or another of its family"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # A study that is being trained here writes to the same ledger.
    with file_lock(here.lock("train"), "train or runs import"):
        new = sum([_import_run(ours, other, identity, params, device) for identity in usable])
        plans = copy_registered_plans(WorkPaths(root=source).plans_folder, here.plans_folder)
    print(f"{source}: {len(found)} cells, {new} imported, {len(usable) - new} known already", end="")
    left = len(found) - len(usable)
    print(f", {left} of another version of the training code left out" if left else "")
    if plans:
        print(f"{source}: {plans} statements of plans imported")


def _import_run(ours: RunCache, other: RunCache, identity: RunKey, params: Params, device: torch.device) -> bool:
    """Copy a cell as `dvc repro` would look for it here; returns whether that was new."""
    job = {**identity.job, "code": _code_family(identity)}
    new = [
        ours.import_run(other, identity, RunKey(job=job, machine=machine))
        for machine in _machines(identity, params, device)
    ]
    return any(new)


def _code_family(identity: RunKey) -> str:
    """As it is named here, where the list of families may be newer than the cell."""
    return code_name(str(identity.job.get("code")), _settings(identity))


def _settings(identity: RunKey) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = identity.job.get("settings", {})
    return settings


def _machines(identity: RunKey, params: Params, device: torch.device) -> list[dict[str, Any]]:
    """This machine, once for each number of CPU threads that the workers of a study which has the cell may have."""
    if device.type == "cuda":
        return [machine_info(device)]
    pinned: int | None = identity.job["settings"]["threads"]
    recipes = [study.effective_recipe(params.train) for study in params.studies.values()]
    counts = {pinned} if pinned else {thread_count(recipe) for recipe in recipes}
    return [worker_machine_info(device, count) for count in sorted(counts)]
