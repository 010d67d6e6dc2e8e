"""The helper that compares a writer's text with its golden file."""

from pathlib import Path

import pytest

from tests.fixtures.golden import FOLDER, compare_or_update


def test_an_equal_text_passes_and_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "golden" / "a.txt"
    compare_or_update(path, "one\r\ntwo", update=True)
    assert path.read_bytes() == b"one\r\ntwo"
    compare_or_update(path, "one\r\ntwo", update=False)


@pytest.mark.parametrize("text", ["one\ntwo\n", "one\r\ntwo"])
def test_another_text_fails_and_the_flag_rewrites_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo")
    with pytest.raises(pytest.fail.Exception) as failure:
        compare_or_update(path, text, update=False)
    assert str(failure.value).startswith("a.txt: differs")
    assert path.read_bytes() == b"one\ntwo"
    compare_or_update(path, text, update=True)
    compare_or_update(path, text, update=False)


def test_a_missing_file_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        compare_or_update(tmp_path / "a.txt", "", update=False)
    assert str(failure.value).startswith("a.txt: missing")


def test_every_golden_file_is_checked_by_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.parent.rglob("test_*.py")]
    assert [path.name for path in FOLDER.glob("*") if not any(f'"{path.name}"' in text for text in texts)] == []
