"""The outputs of a git revision, out of DVC's cache; nothing is checked out."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import InputError


def fetch(
    revision: str,
    places: Iterable[str],
    wanted: Callable[[Path], bool],
    target: Path,
    *,
    may_lack: Callable[[Path], bool],
) -> None:
    """Copy the wanted files of some places in data/, as the revision's dvc.lock has them, to the data folder `target`.

    What dvc.yaml declares there and dvc.lock does not have is left out.

    Args:
        revision: what git or DVC resolves: a commit, a branch, a tag, `HEAD~1`, an experiment of `dvc exp`.
        places: folders, of which all below is looked at, or single files.
        may_lack: whether a file is left out where it can be had nowhere.

    Raises:
        InputError: no such revision, or a file of it is neither in DVC's cache nor in a remote, and may not lack.
    """
    # Takes two seconds; folders are compared without it.
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException

    try:
        files = DVCFileSystem(rev=revision)
        found = [path for place in places for path in files.find(f"/data/{place}")]
    except DvcException as error:
        raise InputError(f"{revision}: neither a folder nor a git revision that DVC can read: {error}") from None
    for path in found:
        if not wanted(Path(path)) or _never_made(files.info(path)):
            continue
        destination = target / Path(path).relative_to("/data")
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            files.get_file(path, str(destination))
        except FileNotFoundError:
            if may_lack(Path(path)):
                continue
            raise InputError(
                f"{revision}: {path.removeprefix('/')} is not in DVC's cache; run `dvc pull --all-commits`"
            ) from None


def _never_made(entry: Mapping[str, Any]) -> bool:
    """Whether dvc.yaml declares the file and dvc.lock does not have it: its stage had not run."""
    output = entry.get("dvc_info")
    return output is not None and output.get("md5") is None
