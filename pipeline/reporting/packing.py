"""What a report was made of, in one file: small enough to commit beside the figures that it gave."""

import io
import tarfile
from pathlib import Path

from pipeline.artifacts.atomic import atomic_path
from pipeline.artifacts.plans import plan_files
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reporting.inputs import files_beside_images, stage_names


def pack(target: Path, *, params: Path, data: DataPaths, work: WorkPaths) -> int:
    """Write `target`, a tar archive compressed by xz whose names are those of a project's own folder.

    It holds no images, features or weights: `prepare` makes the images again. The plans of the studies are in it.
    Packed twice it has the same bytes.

    Returns:
        The number of files.

    Raises:
        InputError: a file of a network or study of the parameter file is missing.
    """
    chosen = load_params(params)
    files = {Path("data") / path.relative_to(data.root): path for path in files_beside_images(chosen, data)}
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
