"""Manual overrides: keep, drop, relabel or clear images, saved to data/overrides.csv at once, with undo."""

import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pipeline.artifacts.files import remove_leftovers
from pipeline.artifacts.overrides import DECISIONS, Override, read_overrides, write_overrides
from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from viz.atomic_write import ConcurrentEditError, exclusive, file_state, replacing

MAX_NOTE = 500
"""Number of characters of a note."""

_ATTEMPTS = 5
# Control characters, half surrogates, separators of lines and of paragraphs.
_FORBIDDEN_NOTE_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}

Decision = Literal["keep", "drop", "relabel"]


@dataclass(frozen=True)
class Image:
    """An image by the path and the sha256 of its manifest, which stay valid after `prepare` has run again."""

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """Result of an action.

    Attributes:
        n_written: number of images whose line was added, changed or removed.
        n_unchanged: number of images of the action whose line did not change.
        images: those written.
        message: the result in words.
    """

    n_written: int
    n_unchanged: int
    images: tuple[Image, ...]
    message: str


_Lines = dict[Image, Override]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Change of the line of one image.

    Attributes:
        before, after: the line; None if there is none.
        above: image whose line precedes a new one; None at the top of the file.
    """

    before: Override | None
    after: Override | None
    above: Image | None


_Action = dict[Image, _Change]


class Decisions:
    """Overrides in one file, with the undo history of this object.

    Safe for several threads, objects and processes: each action reads the file again and replaces it atomically,
    under a lock. An edit without the lock is noticed until the moment of replacement.

    Lines of other images keep their order. A changed override keeps its line, and a new one is the last. The file is
    written in the format of `write_overrides`: line ends and quotes change to it. If an image has two lines, the last
    one stays.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._done: list[_Action] = []

    def decide(self, images: Sequence[Image], decision: Decision | None, note: str, *, label: str = "") -> SaveResult:
        """Decide all `images` in one action. The file has the result when this returns; a missing file is created.

        Args:
            images: to decide.
            decision: None clears overrides: it removes the lines, and skips images without one.
            note: the reason, in one line of at most `MAX_NOTE` characters. If it is empty and the decision does not
                change, the old note stays. Clearing drops it. If labels of the data folder were changed on purpose,
                that is added: a line is valid longer than these labels.
            label: name of the new class for relabel, else empty.

        Raises:
            InputError: the note is too long, or has a line break or another control character; the file is invalid or
                read-only, or other programs keep changing it; the disk is full. Then nothing is written.
        """
        assert decision in (None, *DECISIONS), decision
        assert bool(label) == (decision == "relabel"), (decision, label)
        planted = _planted_note(self._file)
        note = _without_planted(note, planted)
        _check_note(note)
        timestamp = _now()

        def line(image: Image) -> Override | None:
            if decision is None:
                return None
            return Override(
                path=image.path, sha256=image.sha256, decision=decision, label=label, note=note, timestamp=timestamp,
                line=0,
            )  # fmt: skip

        with self._lock:
            action = self._update(lambda lines: _decide(lines, {image: line(image) for image in images}, planted))
            if action:
                self._done.append(action)
        n_unchanged = len(set(images)) - len(action)
        what = {None: "Cleared", "relabel": f"Saved as {label}"}.get(decision, f"Saved as {decision}")
        unchanged = f"; {_count(n_unchanged)} had no override" if n_unchanged else ""
        message = f"{what}: {_count(len(action))}{unchanged}."
        return SaveResult(n_written=len(action), n_unchanged=n_unchanged, images=tuple(action), message=message)

    def undo(self) -> SaveResult | None:
        """Undo the last action of this object that is not undone yet; return None if there is none.

        Each image gets its previous line, with note and timestamp, at its previous position. Images whose line differs
        from what the action wrote are skipped: another user has changed them since. Timestamps are in seconds, so two
        equal lines of one second count as one.

        Raises:
            InputError: as `decide`. The action can then still be undone.
        """
        with self._lock:
            if not self._done:
                return None
            action = self._done[-1]
            undone = self._update(lambda lines: _undo(lines, action))
            self._done.pop()
        n_unchanged = len(action) - len(undone)
        others = f"; {_count(n_unchanged)} changed by others since, skipped" if n_unchanged else ""
        which = next(iter(undone)).path if len(undone) == 1 else _count(len(undone))
        message = f"Undone: {which}{others}."
        return SaveResult(n_written=len(undone), n_unchanged=n_unchanged, images=tuple(undone), message=message)

    def undo_image(self, image: Image) -> SaveResult:
        """Undo the last decision of one image, whichever was the last action.

        The image gets its line from before this object's last action on it, which the history then forgets. Without
        such an action, or if others have changed the line since, its override is cleared, and `undo` restores it.

        Raises:
            InputError: as `decide`. Then nothing is written.
        """
        with self._lock:
            last = next((action for action in reversed(self._done) if image in action), None)
            done = None if last is None else last[image]

            def act(lines: _Lines) -> _Action:
                line = lines.get(image)
                if done is not None and line == done.after:
                    return {image: _Change(before=line, after=done.before, above=done.above)}
                return _decide(lines, {image: None})

            undone = self._update(act)
            if last is not None and done is not None and undone and undone[image].before == done.after:
                del last[image]
                self._done = [action for action in self._done if action]
            elif undone:
                self._done.append(undone)
        message = f"Undone: {image.path}." if undone else f"{image.path}: has no override."
        return SaveResult(n_written=len(undone), n_unchanged=1 - len(undone), images=tuple(undone), message=message)

    def _update(self, act: Callable[[_Lines], _Action]) -> _Action:
        """Apply and return the changes that `act` gives for the lines of the file. Without changes, write nothing."""
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
                        write_overrides(temporary, _apply(lines, action))
                except ConcurrentEditError:
                    continue
                return action
        raise InputError(f"{self._file}: another program keeps changing it; save it there, then try again")


def _read(file: Path) -> _Lines:
    # Line numbers do not count in comparisons.
    return {Image(line.path, line.sha256): replace(line, line=0) for line in read_overrides(file)}


def _planted_note(file: Path) -> str:
    """Return what notes say of labels changed on purpose in the data folder of `file`; empty if none was."""
    data = DataPaths(root=file.parent)
    n_planted = count_planted(data) if data.prepare_metrics.exists() else None
    return "" if n_planted is None else planted_note(n_planted)


def _without_planted(note: str, planted: str) -> str:
    """Return a note as the user wrote it: a saved one that is shown and saved again has the addition."""
    return note.removesuffix(planted).removesuffix("; ") if planted and note.endswith(planted) else note


def _decide(lines: _Lines, new_lines: dict[Image, Override | None], planted: str = "") -> _Action:
    above = dict(zip(lines, (None, *lines), strict=False))
    last = next(reversed(lines), None)
    action = {}
    for image, after in new_lines.items():
        before = lines.get(image)
        if before is None and after is None:
            continue
        if before is not None and after is not None and after.action == before.action and not after.note:
            after = replace(after, note=before.note)
        if after is not None and planted:
            own = _without_planted(after.note, planted)
            after = replace(after, note=f"{own}; {planted}" if own else planted)
        action[image] = _Change(before=before, after=after, above=above.get(image, last))
        if before is None:
            last = image
    return action


def _undo(lines: _Lines, action: _Action) -> _Action:
    return {
        image: _Change(before=change.after, after=change.before, above=change.above)
        for image, change in action.items()
        if lines.get(image) == change.after
    }


def _apply(lines: _Lines, action: _Action) -> list[Override]:
    """Return the lines after `action`. A line whose upper neighbor no longer exists is put last."""
    new = {change.above: image for image, change in action.items() if change.before is None}
    order: list[Image] = []
    for upper in (None, *lines):
        if upper is not None:
            order.append(upper)
        image = new.pop(upper, None)
        # Each new line may be the upper neighbor of the next.
        while image is not None:
            order.append(image)
            image = new.pop(image, None)
    after = lines | {image: change.after for image, change in action.items()}
    return [line for image in (*order, *new.values()) if (line := after[image]) is not None]


def _check_note(note: str) -> None:
    # The csv module reads no field of more than 131,072 characters.
    if len(note) > MAX_NOTE:
        raise InputError(f"note: has {len(note):,} characters; write {MAX_NOTE} at most")
    if any(unicodedata.category(character) in _FORBIDDEN_NOTE_CATEGORIES for character in note):
        raise InputError(f"note: {note[:60]!r} has a line break or a control character; write one line of text")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _count(n: int) -> str:
    return "1 image" if n == 1 else f"{n:,} images"
