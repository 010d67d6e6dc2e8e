"""What people decide about images in the visualizer, saved to data/overrides.csv as they decide it."""

import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pipeline.artifacts.files import remove_leftovers
from pipeline.artifacts.overrides import DECISIONS, Override, read_overrides, write_overrides
from pipeline.errors import InputError
from viz.atomic_write import ConcurrentEditError, exclusive, file_state, replacing

_ATTEMPTS = 5
# Control characters, half surrogates, separators of lines and of paragraphs.
_FORBIDDEN_NOTE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}

Decision = Literal["keep", "drop"]


@dataclass(frozen=True)
class Image:
    """An image by the path and the sha256 of its manifest: what outlives a preparation."""

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """What an action did.

    Attributes:
        n_written: images whose line was added, changed or removed.
        n_unchanged: images of the action whose line was not touched.
        images: those written.
        message: the same for a person.
    """

    n_written: int
    n_unchanged: int
    images: tuple[Image, ...]
    message: str


_Lines = dict[Image, Override]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """What happens to one image's line; None is no line. `above`: whose line a new one comes after, None at the top."""

    before: Override | None
    after: Override | None
    above: Image | None


_Action = dict[Image, _Change]


class Decisions:
    """The decisions in one file, and what can be taken back of those made here.

    Safe for several threads, objects and processes: each action reads the file again and replaces it
    under a lock, at once. An edit by hand is seen until the moment of replacement. Lines of other
    images stay, in their order; a changed decision stays in its line, a new one comes last. The whole
    file is in the format of `write_overrides`: line ends and quotes become its own, and of a decision
    given twice the last line stays.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._done: list[_Action] = []

    def decide(self, images: Sequence[Image], decision: Decision | None, note: str) -> SaveResult:
        """Decide for all `images` in one action, on the disk when this returns; a missing file is made.

        Args:
            decision: None takes decisions back: the lines go; images that have none are left alone.
            note: why, in one line of any text; not looked at when decisions are taken back. Where it is empty
                and the decision is the old one, the old note stays.

        Raises:
            InputError: the note has a line break or another control character; the file is not valid,
                read-only, or changes without end; the disk is full. Then nothing is written.
        """
        assert decision in (None, *DECISIONS), decision
        _check_note(note)
        timestamp = _now()

        def line(image: Image) -> Override | None:
            if decision is None:
                return None
            return Override(
                path=image.path, sha256=image.sha256, decision=decision, note=note, timestamp=timestamp, line=0
            )

        with self._lock:
            action = self._update(lambda lines: _decided(lines, {image: line(image) for image in images}))
            if action:
                self._done.append(action)
        n_unchanged = len(set(images)) - len(action)
        what = "no longer decided by hand" if decision is None else f"to {decision}"
        untouched = f"; {_count(n_unchanged)} had no decision" if n_unchanged else ""
        message = f"{_count(len(action))} {what}{untouched}."
        return SaveResult(n_written=len(action), n_unchanged=n_unchanged, images=tuple(action), message=message)

    def undo(self) -> SaveResult | None:
        """Take back the newest action of this object that is not taken back yet; None if there is none.

        Each image gets the line that it had before, with its note and timestamp, where it stood. Images
        whose line is no longer what the action wrote were decided by somebody else since, and are left
        alone. Timestamps are in seconds: a line written twice within one second is one decision.

        Raises:
            InputError: as `decide`; the action can then still be taken back.
        """
        with self._lock:
            if not self._done:
                return None
            action = self._done[-1]
            undone = self._update(lambda lines: _undone(lines, action))
            self._done.pop()
        n_unchanged = len(action) - len(undone)
        others = f"; {_count(n_unchanged)} changed by others since, left alone" if n_unchanged else ""
        which = next(iter(undone)).path if len(undone) == 1 else _count(len(undone))
        message = f"{which} as before{others}."
        return SaveResult(n_written=len(undone), n_unchanged=n_unchanged, images=tuple(undone), message=message)

    def _update(self, act: Callable[[_Lines], _Action]) -> _Action:
        """Write what `act` makes of the lines in the file, and return it; nothing is written for no change."""
        with exclusive(self._file):
            remove_leftovers(self._file.resolve().parent)
            for _ in range(_ATTEMPTS):
                state = file_state(self._file)
                lines = {} if state is None else _read(self._file)
                action = act(lines)
                if not action:
                    return action
                try:
                    with replacing(self._file, state) as temporary:
                        write_overrides(temporary, _applied(lines, action))
                except ConcurrentEditError:
                    continue
                return action
        raise InputError(f"{self._file}: another program keeps changing it; save it there, then decide again")


def _read(file: Path) -> _Lines:
    # Equal decisions are equal wherever they stand.
    return {Image(line.path, line.sha256): replace(line, line=0) for line in read_overrides(file)}


def _decided(lines: _Lines, wanted: dict[Image, Override | None]) -> _Action:
    above = dict(zip(lines, (None, *lines), strict=False))
    last = next(reversed(lines), None)
    action = {}
    for image, after in wanted.items():
        before = lines.get(image)
        if before is None and after is None:
            continue
        if before is not None and after is not None and after.decision == before.decision and not after.note:
            after = replace(after, note=before.note)
        action[image] = _Change(before=before, after=after, above=above.get(image, last))
        if before is None:
            last = image
    return action


def _undone(lines: _Lines, action: _Action) -> _Action:
    return {
        image: _Change(before=change.after, after=change.before, above=change.above)
        for image, change in action.items()
        if lines.get(image) == change.after
    }


def _applied(lines: _Lines, action: _Action) -> list[Override]:
    """The lines after `action`. A line whose upper neighbor is gone comes last."""
    new = {change.above: image for image, change in action.items() if change.before is None}
    order: list[Image] = []
    place: Image | None
    for place in (None, *lines):
        if place is not None:
            order.append(place)
        # Each new line may be the neighbor of the next.
        while (place := new.pop(place, None)) is not None:
            order.append(place)
    after = lines | {image: change.after for image, change in action.items()}
    return [line for image in (*order, *new.values()) if (line := after[image]) is not None]


def _check_note(note: str) -> None:
    if any(unicodedata.category(character) in _FORBIDDEN_NOTE_CATEGORIES for character in note):
        raise InputError(f"note: {note[:60]!r} has a line break or a control character; write it in one line")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _count(n: int) -> str:
    return "1 image" if n == 1 else f"{n:,} images"
