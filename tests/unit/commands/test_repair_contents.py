"""dvc.lock and rwlock of any content are readable or damaged, and never a traceback."""

from pathlib import Path

import pytest

from pipeline.commands.doctor.dvc_files import is_readable_lock, repair_dvc_files
from pipeline.paths import WorkPaths

_RWLOCK = ".dvc/tmp/rwlock"


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"read": [1]}', '{"write": {"a": {"pid": Infinity}}}', '{"write": {"a": {"pid": NaN}}}', "\0"],
    ids=["deep", "list", "infinity", "NaN", "zero"],
)
def test_an_rwlock_of_any_content_is_removed(tmp_path: Path, text: str) -> None:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / _RWLOCK).write_text(text)
    (repair,) = repair_dvc_files(tmp_path, WorkPaths())
    assert str(repair.file) == _RWLOCK
    assert not (tmp_path / _RWLOCK).exists()


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n", "? [1]\n: 2\n", "? {a: 1}\n: 2\n", "schema: '2.0'\nstages: {a: {cmd: *x}}\n", "\0\n",
        "%YAML 9.9\n---\na: 1\n", "!!python/object:os.system {}\n", "[" * 5_000 + "\n", "a: 2024-13-45\n", "3\n",
        "schema: '2.0'\nstages: {a: {cmd: !!int x}}\n", "x: !!timestamp 1\n", "- " * 3_000 + "\n",
    ],
)  # fmt: skip
def test_a_lock_of_any_content_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "dvc.lock").write_text(text)
    assert not is_readable_lock(tmp_path / "dvc.lock")
