"""A file that its stage did not write is found before another stage reads it."""

import ast
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.artifacts.files import write_json
from pipeline.artifacts.provenance import read_provenance, write_provenance
from pipeline.artifacts.recorded import StageFiles, check_recorded, check_with_note
from pipeline.errors import DataError
from pipeline.paths import DataPaths
from tests.fixtures.records import write_archive_record
from tests.fixtures.source_tree import modules, tree

_NETWORK = "resnet18"


def _project(folder: Path) -> DataPaths:
    data = DataPaths(root=folder / "data")
    data.kept(_NETWORK).parent.mkdir(parents=True)
    data.kept(_NETWORK).write_text("sample_id,path,label_name\n0,a.png,cat\n")
    write_json(data.filter_metrics(_NETWORK), {"n_kept": 1})
    outputs = [data.kept(_NETWORK), data.filter_metrics(_NETWORK)]
    write_provenance(
        data.provenance("filter", _NETWORK), stage=f"filter@{_NETWORK}", parameters={"eps": 0.5}, inputs=[],
        outputs=outputs,
    )  # fmt: skip
    return data


def _check(data: DataPaths, *files: Path) -> list[str]:
    read = files or (data.kept(_NETWORK), data.filter_metrics(_NETWORK))
    return check_recorded(data, [StageFiles(stage="filter", item=_NETWORK, files=read)])


def test_what_the_stage_wrote_passes(tmp_path: Path) -> None:
    assert _check(_project(tmp_path)) == []


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [_flip, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(path.read_bytes() + b"1,b.png,cat\n")],
    ids=["bit", "empty", "row more"],
)
def test_another_content_names_the_file_its_stage_and_the_command(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    data = _project(tmp_path)
    damage(data.kept(_NETWORK))
    with pytest.raises(DataError) as raised:
        _check(data)
    assert raised.value.key == str(data.kept(_NETWORK))
    assert "filter@resnet18" in str(raised.value)
    assert "python -m pipeline.stages.filter --network resnet18" in str(raised.value)


def test_a_change_is_found_though_the_size_and_time_are_as_before(tmp_path: Path) -> None:
    """Digests are kept in memory under the file's stamp, which includes the time of its last change of any kind."""
    data = _project(tmp_path)
    path = data.kept(_NETWORK)
    before = path.stat()
    assert _check(data) == []
    _flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError):
        _check(data)


def test_a_missing_file_is_named_with_the_command(tmp_path: Path) -> None:
    data = _project(tmp_path)
    data.kept(_NETWORK).unlink()
    with pytest.raises(DataError, match=r"kept.csv: missing; run `python -m pipeline.stages.filter"):
        _check(data)


def test_a_file_that_the_stage_did_not_record_is_refused(tmp_path: Path) -> None:
    data = _project(tmp_path)
    data.dropped(_NETWORK).write_text("sample_id\n")
    with pytest.raises(DataError, match=r"dropped.csv: not among the files"):
        _check(data, data.dropped(_NETWORK))


def test_a_stage_without_a_record_is_reported_and_passes(tmp_path: Path) -> None:
    """As in an unpacked archive that has tables alone."""
    data = _project(tmp_path)
    data.provenance("filter", _NETWORK).unlink()
    assert _check(data) == ["filter@resnet18"]


@pytest.mark.parametrize("folder", ["one", "two"])
def test_each_stage_without_a_record_is_noted_once(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, said = _project(tmp_path / folder), list[str]()
    data.provenance("filter", _NETWORK).unlink()
    filtered = StageFiles(stage="filter", item=_NETWORK, files=(data.kept(_NETWORK),))
    for _ in range(2):
        check_with_note(data, [filtered, filtered])
    note = "no provenance.json of {}: their files were not checked"
    assert capsys.readouterr().err == f"{data.root}: {note.format('filter@resnet18')}\n"
    check_with_note(data, [filtered, StageFiles(stage="prepare", files=())], said.append)
    assert said == [f"{data.root}: {note.format('prepare')}"]
    assert capsys.readouterr().err == ""


def test_no_module_discards_the_stages_without_a_record() -> None:
    discarded = [
        f"{path}:{node.lineno}"
        for path in modules().values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func) == "check_recorded"
    ]
    assert discarded == []


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "[]",
        "{}",
        '{"outputs": null}',
        '{"outputs": {"kept.csv": 5}, "stage": "filter@resnet18"}',
        "",
        "[" * 400,
    ],
)
def test_a_damaged_record_is_one_line(tmp_path: Path, content: str) -> None:
    data = _project(tmp_path)
    data.provenance("filter", _NETWORK).write_text(content)
    with pytest.raises(DataError) as raised:
        _check(data)
    assert raised.value.key == str(data.provenance("filter", _NETWORK))


def test_a_changed_digit_of_the_record_is_found(tmp_path: Path) -> None:
    path = _project(tmp_path).provenance("filter", _NETWORK)
    path.write_text(path.read_text().replace("0.5", "0.6"))
    with pytest.raises(DataError, match="has changed since"):
        read_provenance(path)


@pytest.mark.parametrize("damaged", ['"sha257": "\\1"', '"stage": "\\1"', '"sha256": null'])
def test_a_record_whose_own_digest_is_damaged_is_refused(tmp_path: Path, damaged: str) -> None:
    """It would else count as one of a version that wrote none."""
    path = _project(tmp_path).provenance("filter", _NETWORK)
    path.write_text(re.sub('"sha256": "([0-9a-f]{64})"', damaged, path.read_text()))
    with pytest.raises(DataError) as raised:
        read_provenance(path)
    assert raised.value.key == str(path)


def test_a_record_of_a_version_without_its_own_digest_is_read(tmp_path: Path) -> None:
    data = _project(tmp_path)
    path = data.provenance("filter", _NETWORK)
    record = json.loads(path.read_text())
    del record["sha256"]
    write_json(path, record)
    assert _check(data) == []


def test_the_record_of_another_network_is_refused(tmp_path: Path) -> None:
    data = _project(tmp_path)
    other = data.provenance("filter", "resnet34")
    other.parent.mkdir()
    data.provenance("filter", _NETWORK).rename(other)
    data.kept(_NETWORK).rename(data.kept("resnet34"))
    with pytest.raises(DataError, match="filter@resnet18"):
        check_recorded(data, [StageFiles(stage="filter", item="resnet34", files=(data.kept("resnet34"),))])


def test_an_archive_may_have_other_files_if_it_says_so(tmp_path: Path) -> None:
    data = _project(tmp_path)
    data.kept(_NETWORK).write_text("sample_id,path,label_name\n")
    write_archive_record(data, [data.kept(_NETWORK)])
    assert _check(data) == []
    _flip(data.kept(_NETWORK))
    with pytest.raises(DataError, match="kept"):
        _check(data)


def test_the_record_of_an_archive_covers_files_without_provenance(tmp_path: Path) -> None:
    data = _project(tmp_path)
    data.provenance("filter", _NETWORK).unlink()
    write_archive_record(data, [data.kept(_NETWORK)])
    _flip(data.kept(_NETWORK))
    with pytest.raises(DataError, match="kept"):
        _check(data)
