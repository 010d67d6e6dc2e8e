"""Each file of a run has a largest size, which is compared before the file is hashed, read or copied."""

import os
import shutil
from pathlib import Path

import pytest

from pipeline.artifacts.provenance import sha256_of_file
from pipeline.errors import InputError
from pipeline.runs.ledger import Ledger
from pipeline.runs.record import CHECKED_FILES, CHECKSUMS, WEIGHTS, check_bounded
from tests.unit.runs.test_ledger import FINISHED, KEY
from tests.unit.runs.test_record import import_all

_LIMITS = {"result.json": 64_000_000, "correct.npy": 1_000_000_000, WEIGHTS: 8_000_000_000}
_LARGER_THAN_ALL = 10_000_000_000


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of another machine; whether its weights are a network is not asked."""
    (tmp_path / WEIGHTS).write_bytes(b"weights")
    ledger = Ledger(tmp_path / "theirs")
    ledger.add(KEY, FINISHED, tmp_path / WEIGHTS)
    monkeypatch.setattr("pipeline.runs.ledger.load_trained", lambda _: None)
    return ledger


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that hashes or copies a large file, instead of waiting for it."""
    copy_file = shutil.copyfile

    def short(path: Path) -> Path:
        assert path.stat().st_size < 1_000_000, "it is read before its size is compared"
        return path

    monkeypatch.setattr("pipeline.runs.record.sha256_of_file", lambda path: sha256_of_file(short(path)))
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: copy_file(short(source), target))


@pytest.mark.usefixtures("short_reads")
@pytest.mark.parametrize(
    ("name", "checksums"), [(CHECKSUMS, True), *((name, listed) for name in CHECKED_FILES for listed in (True, False))]
)
def test_a_file_that_is_too_large_is_refused_unread(theirs: Ledger, tmp_path: Path, name: str, checksums: bool) -> None:
    entry, ours = theirs.folder(KEY.fingerprint), Ledger(tmp_path / "ours")
    if not checksums:
        (entry / CHECKSUMS).unlink()
    os.truncate(entry / name, _LARGER_THAN_ALL)  # a file of holes, which takes no space
    with pytest.raises(InputError, match="10,000,000,000 bytes, more than") as raised:
        import_all(ours, theirs)
    assert raised.value.key == str(entry / name)
    assert not ours.has(KEY.fingerprint)
    assert not list(tmp_path.glob("ours/.*"))


@pytest.mark.parametrize("name", _LIMITS)
def test_limits(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    os.truncate(path, _LIMITS[name])
    check_bounded(path)
    os.truncate(path, _LIMITS[name] + 1)
    with pytest.raises(InputError, match=f"more than {_LIMITS[name]:,}; remove it"):
        check_bounded(path)


@pytest.mark.usefixtures("short_reads")
def test_files_of_usual_size_are_imported(theirs: Ledger, tmp_path: Path) -> None:
    ours = Ledger(tmp_path / "ours")
    import_all(ours, theirs)
    assert ours.weights(KEY.fingerprint).read_bytes() == b"weights"
