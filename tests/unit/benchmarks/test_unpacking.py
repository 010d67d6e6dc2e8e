"""Archives of the project are unpacked on every supported Python, in one place."""

import ast
import io
import tarfile
from pathlib import Path

import pytest

from benchmarks.unpacking import unpack
from tests.fixtures.source_tree import ROOT


@pytest.mark.parametrize("has_filters", [True, False])
def test_an_archive_is_unpacked_by_any_python(
    has_filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12 has Python 3.11.2, whose `extractall` takes no filter."""
    entry = tarfile.TarInfo("data/a.txt")
    entry.size = 4
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(entry, io.BytesIO(b"text"))
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        extract = tarfile.TarFile.extractall

        def without_filter(archive: tarfile.TarFile, path: Path) -> None:
            extract(archive, path)

        monkeypatch.setattr(tarfile.TarFile, "extractall", without_filter)
    unpack(tmp_path / "a.tar", tmp_path / "out")
    assert (tmp_path / "out/data/a.txt").read_text() == "text"


def test_nothing_else_extracts_archives() -> None:
    folders = ("batchsieve", "benchmarks", "docs/tooling", "pipeline", "tests", "viz")
    calls = [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "extractall" in (text := path.read_text(encoding="utf-8"))
        and any(isinstance(node, ast.Attribute) and node.attr == "extractall" for node in ast.walk(ast.parse(text)))
    ]
    assert set(calls) == {"benchmarks/unpacking.py", "tests/unit/benchmarks/test_unpacking.py"}
