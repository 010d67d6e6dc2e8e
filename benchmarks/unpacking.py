"""Unpack the tar archives of this project on every supported Python."""

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive into a folder, without what an archive of data never has: links out of it, devices, owners.

    Python 3.11 has the filter for it since 3.11.4; Debian 12 has 3.11.2. There only archives of this project are safe.

    Raises:
        OSError: the archive cannot be read.
        tarfile.TarError: it is damaged, or has such a member.
    """
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)
