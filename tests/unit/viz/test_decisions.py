"""An action has written the file when it returns, and keeps the overrides of others."""

import errno
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.artifacts.files import write_json
from pipeline.artifacts.overrides import COLUMNS, Override, read_overrides, write_overrides
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.printed_errors import key_within
from viz import decisions
from viz.decisions import MAX_NOTE, Decision, Decisions, Image

_IMAGES = [Image(f"train/{letter}.png", letter * 2) for letter in "abcde"]
_A, _B, _C = _IMAGES[:3]
_HEADER = ",".join(COLUMNS) + "\n"

_Line = tuple[str, str, str]
_Undo = dict[Image, tuple[_Line | None, _Line | None]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "overrides.csv"
    path.parent.mkdir()
    path.write_text(_HEADER)
    return path


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    """Let one second pass between two actions."""
    with pytest.MonkeyPatch.context() as patch:
        seconds = itertools.count()
        patch.setattr(decisions, "_now", lambda: f"second {next(seconds)}")
        yield


def _lines(file: Path) -> dict[Image, _Line]:
    return {Image(o.path, o.sha256): (o.decision, o.note, o.timestamp) for o in read_overrides(file)}


def _by_hand(file: Path, image: Image, decision: str) -> None:
    others = [line for line in read_overrides(file) if line.path != image.path]
    mine = Override(path=image.path, sha256=image.sha256, decision=decision, note="by hand", timestamp="", line=0)
    edited = file.with_name("overrides.csv~")
    write_overrides(edited, [*others, mine])
    edited.replace(file)


def test_notes_say_that_labels_were_changed_on_purpose(file: Path) -> None:
    """Once, also if a note stays or is saved again; the line outlives these labels."""
    write_json(DataPaths(root=file.parent).prepare_metrics, {"n_planted": 3})
    chosen, planted = Decisions(file), "labels changed on purpose: 3"
    chosen.decide([_A], "drop", "blurred")
    chosen.decide([_B], "drop", "")
    assert [_lines(file)[image][1] for image in (_A, _B)] == [f"blurred; {planted}", planted]
    chosen.decide([_A], "drop", "")
    chosen.decide([_B], "keep", planted)
    assert [_lines(file)[image][1] for image in (_A, _B)] == [f"blurred; {planted}", planted]
    longest = "x" * MAX_NOTE
    for note in (longest, f"{longest}; {planted}"):
        chosen.decide([_A], "keep", note)
        assert _lines(file)[_A][1] == f"{longest}; {planted}"
    chosen.decide([_A, _B], None, "")
    assert _lines(file) == {}


def test_a_decision_of_several_images_is_a_line_each_at_one_time(file: Path) -> None:
    saved = Decisions(file).decide([_A, _B, _A], "drop", "blurred, twice")
    assert (saved.n_written, saved.n_unchanged) == (2, 0)
    a, b = read_overrides(file)
    assert (a.path, a.sha256, a.decision, a.note) == ("train/a.png", "aa", "drop", "blurred, twice")
    assert a.timestamp == b.timestamp


def test_timestamps_are_seconds_in_utc() -> None:
    code = "from viz.decisions import _now; print(_now())"
    answers = [
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"TZ": zone}, capture_output=True, text=True)
        for zone in ("Asia/Kolkata", "UTC")
    ]
    for answer in answers:
        printed = time.strptime(answer.stdout.strip(), "%Y-%m-%dT%H:%M:%S+00:00")
        assert abs(time.mktime(printed) - time.mktime(time.gmtime())) < 60


def test_a_missing_file_is_created_and_no_change_writes_nothing(file: Path) -> None:
    file.unlink()
    chosen = Decisions(file)
    cleared = chosen.decide([_A], None, "")
    assert (cleared.n_written, cleared.n_unchanged) == (0, 1)
    assert chosen.decide([], "drop", "").n_written == 0
    assert not file.exists()
    assert chosen.undo() is None
    chosen.decide([_A], "keep", "")
    assert list(_lines(file)) == [_A]


def test_changed_lines_keep_their_place_and_undo_the_bytes(file: Path) -> None:
    chosen = Decisions(file)
    chosen.decide([_A, _B, _C], "drop", "first")
    before = file.read_bytes()
    chosen.decide([_IMAGES[3], _B], "keep", "second")
    assert list(_lines(file)) == [_A, _B, _C, _IMAGES[3]]
    chosen.decide([_C, _A, _B], None, "")
    assert list(_lines(file)) == [_IMAGES[3]]
    chosen.undo()
    chosen.undo()
    assert file.read_bytes() == before
    assert chosen.undo() is not None
    assert file.read_text() == _HEADER
    assert chosen.undo() is None


def test_a_relabel_is_saved_and_undone_like_other_decisions(file: Path) -> None:
    def lines() -> list[tuple[str, str, str]]:
        return [(line.decision, line.label, line.note) for line in read_overrides(file)]

    chosen = Decisions(file)
    assert chosen.decide([_A], "relabel", "no cat", label="dog").message == "Saved as dog: 1 image."
    chosen.decide([_A], "relabel", "", label="dog")
    assert lines() == [("relabel", "dog", "no cat")]
    # The note was about another label.
    chosen.decide([_A], "relabel", "", label="cow")
    chosen.decide([_A], "keep", "")
    assert lines() == [("keep", "", "")]
    for expected in ("cow", "dog", "dog"):
        chosen.undo()
        assert lines()[0][:2] == ("relabel", expected)
    chosen.undo()
    assert lines() == []


def test_undo_skips_lines_that_others_changed_since(file: Path) -> None:
    mine, other = Decisions(file), Decisions(file)
    mine.decide([_A, _B, _C], "drop", "mine")
    other.decide([_B], "keep", "theirs")
    other.decide([_C], None, "")
    undone = mine.undo()
    assert undone is not None
    assert (undone.n_written, undone.n_unchanged) == (1, 2)
    assert {image: line[:2] for image, line in _lines(file).items()} == {_B: ("keep", "theirs")}
    other.undo()
    assert {image: line[:2] for image, line in _lines(file).items()} == {_B: ("keep", "theirs"), _C: ("drop", "mine")}


def test_undo_puts_a_line_without_its_upper_neighbor_at_the_end(file: Path) -> None:
    mine, other = Decisions(file), Decisions(file)
    mine.decide([_A, _B, _C], "drop", "")
    mine.decide([_B], None, "")
    other.decide([_A], None, "")
    mine.undo()
    assert list(_lines(file)) == [_C, _B]


_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.integers(0, 1),
            st.lists(st.sampled_from(_IMAGES), max_size=4),
            st.sampled_from(["keep", "drop", None]),
            st.sampled_from(["", "=1+1", 'a "note", plain']),
        ),
        st.integers(0, 1),
        st.tuples(st.sampled_from(_IMAGES), st.sampled_from(["keep", "drop"])),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(operations=_OPERATIONS)
def test_two_windows_and_hand_edits_agree_with_a_simple_model(
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[int, list[Image], Decision | None, str] | int | tuple[Image, str]],
) -> None:
    file = tmp_path_factory.mktemp("d") / "overrides.csv"
    file.write_text(_HEADER)
    windows, done = [Decisions(file), Decisions(file)], [list[_Undo](), list[_Undo]()]
    for operation in operations:
        before = _lines(file)
        expected = dict(before)
        match operation:
            case int(window):
                saved = windows[window].undo()
                assert (saved is None) == (not done[window])
                if saved is not None:
                    action = done[window].pop()
                    back = {image: old for image, (old, new) in action.items() if before.get(image) == new}
                    expected |= {image: old for image, old in back.items() if old is not None}
                    expected = {image: line for image, line in expected.items() if back.get(image, line) is not None}
                    assert (saved.n_written, saved.n_unchanged) == (len(back), len(action) - len(back))
            case (Image() as image, str(by_hand)):
                _by_hand(file, image, by_hand)
                expected[image] = by_hand, "by hand", ""
            case (int(window), images, decision, note):
                saved = windows[window].decide(images, decision, note)
                now = _lines(file)
                changed = [image for image in dict.fromkeys(images) if decision or image in before]
                for image in changed:
                    expected.pop(image, None)
                    if decision is not None:
                        old = before.get(image, (None, "", ""))
                        kept = old[1] if not note and old[0] == decision else note
                        expected[image] = decision, kept, now[image][2]
                if changed:
                    done[window].append({image: (before.get(image), expected.get(image)) for image in changed})
                assert (saved.n_written, saved.n_unchanged) == (len(changed), len(set(images)) - len(changed))
        after = _lines(file)
        assert after == expected
        if not isinstance(operation, tuple) or len(operation) == 4:
            assert [image for image in after if image in before] == [image for image in before if image in after]


@pytest.mark.parametrize("note", ["two\nlines", "a\rb", "a\tb", "\0", "\x7f", "\u2028", "\ud800", "x" * (MAX_NOTE + 1)])
def test_a_note_is_one_short_line_of_text(file: Path, note: str) -> None:
    with pytest.raises(InputError) as refused:
        Decisions(file).decide([_A], "drop", note)
    assert refused.value.key == "note"
    assert file.read_text() == _HEADER


def test_an_invalid_hand_edit_stays_and_is_named(file: Path) -> None:
    chosen = Decisions(file)
    chosen.decide([_A], "drop", "")
    wrong = file.read_text().replace("drop", "dorp")
    file.write_text(wrong)
    for action in (lambda: chosen.decide([_B], "keep", ""), chosen.undo):
        with pytest.raises(InputError) as refused:
            action()
        assert key_within(refused.value, file) == "line 2"
    assert file.read_text() == wrong
    file.write_text(wrong.replace("dorp", "drop"))
    assert chosen.undo() is not None
    assert file.read_text() == _HEADER


def test_an_editor_that_saves_in_between_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = iter([lambda: _by_hand(file, _B, "keep"), lambda: file.write_text(file.read_text().replace("hand", "me"))])

    def write(path: Path, lines: list[Override]) -> None:
        write_overrides(path, lines)
        next(edits, lambda: None)()

    monkeypatch.setattr(decisions, "write_overrides", write)
    Decisions(file).decide([_A], "drop", "mine")
    assert {image: line[:2] for image, line in _lines(file).items()} == {_B: ("keep", "by me"), _A: ("drop", "mine")}


def test_a_file_that_keeps_changing_is_not_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, lines: list[Override]) -> None:
        write_overrides(path, lines)
        _by_hand(file, _B, "keep")

    monkeypatch.setattr(decisions, "write_overrides", write)
    with pytest.raises(InputError) as refused:
        Decisions(file).decide([_A], "drop", "")
    assert refused.value.key == str(file)
    assert list(_lines(file)) == [_B]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_error_keeps_the_old_file_and_the_undo_history(
    file: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    chosen = Decisions(file)
    chosen.decide([_A], "drop", "")
    before = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
        for action in (lambda: chosen.decide([_B], "keep", ""), chosen.undo):
            with pytest.raises(InputError) as refused:
                action()
            assert refused.value.key == str(file)
    assert file.read_bytes() == before
    assert {path.name for path in file.parent.iterdir()} == {file.name, ".overrides.csv.lock"}
    assert chosen.undo() is not None


def test_a_read_only_file_is_not_replaced(file: Path) -> None:
    file.chmod(0o444)
    with pytest.raises(InputError) as refused:
        Decisions(file).decide([_A], "drop", "")
    assert refused.value.key == str(file)
    assert file.read_text() == _HEADER


def test_mode_and_link_of_the_file_stay(file: Path, tmp_path: Path) -> None:
    file.chmod(0o664)
    link = tmp_path / "overrides.csv"
    link.symlink_to(file)
    Decisions(link).decide([_A], "drop", "")
    assert link.is_symlink()
    assert list(_lines(file)) == [_A]
    assert file.stat().st_mode & 0o777 == 0o664
