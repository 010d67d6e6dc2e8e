"""Human decisions: round trip, and one clear line for every mistake."""

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.overrides import (
    COLUMNS,
    Override,
    apply_labels,
    locate_overrides,
    read_overrides,
    write_overrides,
)
from pipeline.datasets.labels import class_name
from pipeline.errors import InputError
from tests.fixtures.golden import check_golden, refusals

_OLD_HEADER = "path,sha256,decision,note,timestamp\n"
_HEADER = "path,sha256,decision,label,note,timestamp\n"
_LINE = "train/a.png,aa,drop,,,2026-01-01\n"
_RELABEL = "train/a.png,aa,relabel,dog,,2026-01-01\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "overrides.csv"
    path.write_bytes(text.encode())
    return path


def _override(path: str = "a.png", sha256: str = "aa", decision: str = "drop", label: str = "") -> Override:
    return Override(path=path, sha256=sha256, decision=decision, label=label, note="", timestamp="", line=2)


def test_the_header_alone_is_no_decision(tmp_path: Path) -> None:
    assert read_overrides(_file(tmp_path, _HEADER)) == []
    assert read_overrides(Path(__file__).parents[3] / "data" / "overrides.csv") == []


# Text as a person or a spreadsheet may leave it in a quoted field; NUL is not text.
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_BEFORE_A_SIGN = st.sampled_from(["", "'", "''", " ", "\xa0'"])
_DECISIONS = st.tuples(st.sampled_from(["keep", "drop"]), st.just("")) | st.tuples(
    st.just("relabel"), st.one_of(_TEXT, st.just("=1+1"), st.just("'=x")).map(class_name).filter(bool)
)
_FORMULAS = st.tuples(_BEFORE_A_SIGN, st.sampled_from("=+-@＝"), _TEXT).map("".join)


@given(
    rows=st.lists(
        st.tuples(_TEXT, _TEXT, _DECISIONS, _TEXT | _FORMULAS, _TEXT).map(lambda r: (*r[:2], *r[2], *r[3:])),
        unique_by=lambda r: r[0],
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]) -> None:
    path = tmp_path_factory.mktemp("o") / "overrides.csv"
    write_overrides(path, [Override(**dict(zip(COLUMNS, row, strict=True)), line=0) for row in rows])
    read = read_overrides(path)
    assert [tuple(getattr(override, column) for column in COLUMNS) for override in read] == rows


@pytest.mark.parametrize("note", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "＝1", "'=1"])
def test_no_note_or_path_is_a_formula_in_the_file(tmp_path: Path, note: str) -> None:
    path = tmp_path / "overrides.csv"
    write_overrides(path, [replace(_override(), note=note, path=note)])
    with path.open(encoding="utf-8", newline="") as text:
        _, (path_written, *_, written, _) = csv.reader(text)
    assert written == path_written == f"'{note}"


@pytest.mark.parametrize("note", ["'tis blurred", "a=b", "", "=1"])
def test_notes_written_by_hand_are_read_as_they_stand(tmp_path: Path, note: str) -> None:
    (read,) = read_overrides(_file(tmp_path, _HEADER + f"a.png,aa,drop,,{note},\n"))
    assert read.note == note


def test_files_without_the_column_label_load(tmp_path: Path) -> None:
    (read,) = read_overrides(_file(tmp_path, _OLD_HEADER + "a.png,aa,drop,blurred,2026-01-01\n"))
    assert read == Override(path="a.png", sha256="aa", decision="drop", note="blurred", timestamp="2026-01-01", line=2)
    write_overrides(tmp_path / "overrides.csv", [read])
    assert (tmp_path / "overrides.csv").read_text() == _HEADER + "a.png,aa,drop,,blurred,2026-01-01\n"


def test_a_relabel_keeps_the_image_and_changes_its_label_alone() -> None:
    relabel = _override(decision="relabel", label="dog")
    assert [_override(decision=decision).keeps for decision in ("keep", "drop")] == [True, False]
    assert relabel.keeps
    given = np.array([0, 0, 1])
    assert apply_labels(given, {1: relabel, 2: _override(decision="keep")}, ["cat", "dog"]).tolist() == [0, 1, 1]
    assert given.tolist() == [0, 0, 1]


@pytest.mark.parametrize("written", ["cafe\u0301", " caf\u00e9 ", "caf\u00e9"])
def test_a_relabel_names_its_class_in_any_form(written: str, tmp_path: Path) -> None:
    """macOS writes an e and an accent, and spreadsheets leave blanks."""
    decided = read_overrides(_file(tmp_path, _HEADER + _RELABEL.replace("dog", written)))
    names = ["caf\u00e9", "dog"]
    located = locate_overrides(decided, file=Path("o.csv"), paths=["train/a.png"], sha256=["aa"], class_names=names)
    assert apply_labels(np.array([1]), located, names).tolist() == [0]


def test_spreadsheet_habits_are_harmless(tmp_path: Path) -> None:
    read = read_overrides(_file(tmp_path, "\ufeff" + _HEADER.replace("\n", "\r\n") + "\r\n" + _LINE + "\n"))
    assert [(o.path, o.line) for o in read] == [("train/a.png", 3)]


def test_the_same_decision_twice_counts_once(tmp_path: Path) -> None:
    read = read_overrides(_file(tmp_path, _HEADER + _LINE + _LINE.replace(",,,", ",,again,")))
    assert [o.note for o in read] == ["again"]


_MISTAKES = {
    "empty": "",
    "no header": _LINE,
    "too few fields": _HEADER + "a.png,aa,drop\n",
    "a comma": _HEADER + _LINE + "b,1.png,bb,keep,,,\n",
    "a capital": _HEADER + _LINE.replace("drop", "Drop"),
    "no decision": _HEADER + _LINE.replace("drop", ""),
    "decided twice": _HEADER + _LINE + _LINE.replace("drop", "keep"),
    "relabeled twice": _HEADER + _RELABEL + _RELABEL.replace("dog", "cat"),
    "relabel without a label": _HEADER + _RELABEL.replace("dog", ""),
    "relabel in an old file": _OLD_HEADER + "a.png,aa,relabel,,\n",
    "a label on drop": _HEADER + _RELABEL.replace("relabel", "drop"),
    "a label on keep": _HEADER + _RELABEL.replace("relabel", "keep"),
    "a line break in a name": _HEADER + '"a\nb.png",aa,maybe,,,\n',
}


def test_mistakes_are_named_with_their_line(tmp_path: Path) -> None:
    def read(text: str) -> None:
        read_overrides(_file(tmp_path, text))

    cases: dict[str, Callable[[], object]] = {"missing": partial(read_overrides, tmp_path / "overrides.csv")}
    cases |= {name: partial(read, text) for name, text in _MISTAKES.items()}
    changes = {
        "gone": {"path": "c.png"},
        "another image": {"sha256": "bb"},
        "no such class": {"decision": "relabel", "label": "zebra"},
        "a class misspelled": {"decision": "relabel", "label": "Dog"},
    }
    for name, change in changes.items():
        decided = [_override(**change)]
        cases[name] = partial(
            locate_overrides, decided, file=Path("o.csv"), paths=["a.png", "b.png"], sha256=["aa", "bb"],
            class_names=["cat", "dog"],
        )  # fmt: skip
    check_golden("refused_overrides.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", f'{_HEADER}"a.png,aa,drop,,,\n'.encode()])
def test_files_that_are_no_csv_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "overrides.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_overrides(path)
    assert refused.value.key == str(path)


def test_a_decision_finds_its_image_wherever_it_stands() -> None:
    override = _override("b.png", "bb")
    for paths in (["a.png", "b.png"], ["b.png", "a.png"]):
        sha256 = [path[0] * 2 for path in paths]
        located = locate_overrides([override], file=Path("o.csv"), paths=paths, sha256=sha256, class_names=["cat"])
        assert located == {paths.index("b.png"): override}
