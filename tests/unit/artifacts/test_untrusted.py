"""JSON of people who are not trusted has one meaning, and no file of theirs keeps a reader waiting."""

import json
import os
from pathlib import Path

import pytest

from pipeline.artifacts.untrusted import MAX_DEPTH, check_special_files, read_untrusted_json
from pipeline.errors import InputError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "has the key c twice in one object"),
        ("[NaN]", "has NaN"),
        ('{"a": -Infinity}', "has -Infinity"),
        ("[-1e999]", "has -1e999"),
        ("[" + "9" * 5_000 + "]", "not readable as JSON"),
        ("{", "not readable as JSON"),
        ('"' + "x" * 50 + '"', "52 bytes, more than 50"),
    ],
)
def test_what_parsers_read_differently_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_untrusted_json(tmp_path / "x.json", max_bytes=50 if "bytes" in reason else 1_000_000)


@pytest.mark.timeout(60)  # comparing each key with all others takes hours
def test_a_key_twice_among_200_000_is_refused(tmp_path: Path) -> None:
    keys = [*range(200_000), 199_999]
    (tmp_path / "x.json").write_text("{" + ", ".join(f'"k{key}": 1' for key in keys) + "}")
    with pytest.raises(InputError, match="has the key k199999 twice in one object"):
        read_untrusted_json(tmp_path / "x.json")


def test_values_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, 2.5, null, "\\u00e9"], "b": {}}')
    assert read_untrusted_json(tmp_path / "x.json") == {"a": [1, 2.5, None, "é"], "b": {}}
    (tmp_path / "link.json").symlink_to(tmp_path / "x.json")
    assert read_untrusted_json(tmp_path / "link.json", may_be_link=True)["b"] == {}
    with pytest.raises(InputError, match="not a regular file"):
        read_untrusted_json(tmp_path / "link.json")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 600, 990, 100_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_deep_values_are_refused(tmp_path: Path, depth: int, start: str, end: str) -> None:
    (tmp_path / "x.json").write_text(start * depth + "1" + end * depth)
    with pytest.raises(InputError, match="nested in more than 50 levels"):
        read_untrusted_json(tmp_path / "x.json")


def test_the_deepest_values_are_read(tmp_path: Path) -> None:
    text = '{"a": [' * (MAX_DEPTH // 2) + "1" + "]}" * (MAX_DEPTH // 2)
    (tmp_path / "x.json").write_text(text)
    assert json.dumps(read_untrusted_json(tmp_path / "x.json")) == text


def test_a_pipe_that_replaces_the_file_after_the_check_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"

    def replaced(*_: object, **__: object) -> None:
        path.unlink()
        os.mkfifo(path)

    path.write_text("{}")
    monkeypatch.setattr("pipeline.artifacts.untrusted.check_regular", replaced)
    with pytest.raises(InputError, match="not a regular file"):
        read_untrusted_json(path)


def test_a_link_that_replaces_a_checked_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, secret = tmp_path / "x.json", tmp_path / "secret"
    secret.write_text('{"secret": 1}')
    path.symlink_to(secret)
    monkeypatch.setattr("pipeline.artifacts.untrusted.check_regular", lambda *_, **__: None)
    with pytest.raises(InputError):
        read_untrusted_json(path)


def test_folders_are_searched_behind_links_and_only_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "data" / "gone").symlink_to(tmp_path / "nothing")
    check_special_files([tmp_path / "data", tmp_path / "no-such-folder"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        check_special_files([tmp_path / "data"])


@pytest.mark.parametrize(("name", "size"), [("best.pt", 9), ("runs.parquet", 9), ("train.npy", 301), ("page.html", 1)])
def test_a_file_that_no_stage_writes_so_large_is_refused(tmp_path: Path, name: str, size: int) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1000)
    check_special_files([tmp_path])
    os.truncate(tmp_path / name, size * 10**9)  # a file of holes, which takes no space
    with pytest.raises(InputError, match=f"{name}: {size},000,000,000 bytes, more than "):
        check_special_files([tmp_path])


def test_an_archive_of_images_may_be_large(tmp_path: Path) -> None:
    (tmp_path / "images.tar").touch()
    os.truncate(tmp_path / "images.tar", 10**12)
    check_special_files([tmp_path])


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="of Linux alone")
@pytest.mark.parametrize("target", ["/proc/self/pagemap", "/proc/self", "/sys/kernel"])
def test_a_link_to_what_the_kernel_makes_up_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "best.pt").symlink_to(target)
    with pytest.raises(InputError, match=r"best\.pt: leads to "):
        check_special_files([tmp_path])


def test_a_link_to_a_file_of_a_disk_is_none(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "best.pt").symlink_to(tmp_path / "cache")
    check_special_files([tmp_path / "data"])
