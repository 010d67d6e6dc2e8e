"""Any decision can be undone, not the last one alone."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.overrides import read_overrides
from viz.decisions import Decision, Decisions, Image

_IMAGES = [Image(f"{letter}.png", letter) for letter in "abc"]
_A, _B, _C = _IMAGES


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "overrides.csv"


def _lines(file: Path) -> list[tuple[str, str]]:
    return [(line.path, line.decision) for line in read_overrides(file)]


def test_one_decision_is_undone_and_later_ones_stay(file: Path) -> None:
    chosen = Decisions(file)
    for image in _IMAGES:
        chosen.decide([image], "drop", "")
    assert chosen.undo_image(_B).images == (_B,)
    assert _lines(file) == [("a.png", "drop"), ("c.png", "drop")]
    # The history has the others still.
    chosen.undo()
    chosen.undo()
    assert _lines(file) == []
    assert chosen.undo() is None


def test_an_image_decided_twice_goes_back_step_by_step(file: Path) -> None:
    chosen = Decisions(file)
    chosen.decide([_A, _B], "drop", "first")
    chosen.decide([_A], "keep", "second")
    chosen.undo_image(_A)
    assert _lines(file) == [("a.png", "drop"), ("b.png", "drop")]
    chosen.undo_image(_A)
    assert _lines(file) == [("b.png", "drop")]
    assert chosen.undo_image(_A).n_written == 0
    chosen.undo()
    assert _lines(file) == []


def test_another_windows_decision_is_cleared_and_undone(file: Path) -> None:
    Decisions(file).decide([_A], "keep", "theirs")
    before = file.read_bytes()
    mine = Decisions(file)
    mine.undo_image(_A)
    assert _lines(file) == []
    mine.undo()
    assert file.read_bytes() == before


def test_a_line_that_others_changed_is_cleared_and_undone(file: Path) -> None:
    mine = Decisions(file)
    mine.decide([_A], "drop", "mine")
    Decisions(file).decide([_A], "keep", "theirs")
    mine.undo_image(_A)
    assert _lines(file) == []
    mine.undo()
    assert _lines(file) == [("a.png", "keep")]


_STEPS = st.lists(st.tuples(st.sampled_from(_IMAGES), st.sampled_from(["keep", "drop", None])), max_size=10)


@given(steps=_STEPS, back=st.permutations(_IMAGES))
def test_undoing_all_images_gives_the_empty_file(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Image, Decision | None]], back: list[Image]
) -> None:
    file = tmp_path_factory.mktemp("d") / "overrides.csv"
    chosen = Decisions(file)
    for image, decision in steps:
        chosen.decide([image], decision, "")
    for image in back:
        for _ in range(1 + len(steps)):
            if not any(line.path == image.path for line in (read_overrides(file) if file.exists() else [])):
                break
            chosen.undo_image(image)
    assert not file.exists() or read_overrides(file) == []
