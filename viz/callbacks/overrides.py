"""Commands that keep, drop, relabel or clear one image or a selection, and undo."""

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output
from flask import request

from pipeline.artifacts.overrides import read_overrides
from pipeline.errors import InputError
from viz.callbacks.embedding import MAP_CONTROLS, MapControls, parse_controls
from viz.data import Points, Source
from viz.decisions import Decision, Decisions, Image, SaveResult

_MAX_PAGES = 100

# None clears an override.
_DECISIONS: Mapping[str, Decision | None] = {
    "keep": "keep",
    "drop": "drop",
    "relabel": "relabel",
    "clear": None,
    "keep-selection": "keep",
    "drop-selection": "drop",
}


class OverrideSessions:
    """Overrides of each open page, with separate undo histories."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._pages: dict[str, Decisions] = {}

    def for_page(self, page: str) -> Decisions:
        """Return the overrides of an open page. The least recently used page is forgotten first."""
        with self._lock:
            decisions = self._pages.pop(page, None) or Decisions(self._file)
            self._pages[page] = decisions
            while len(self._pages) > _MAX_PAGES:
                del self._pages[next(iter(self._pages))]
            return decisions


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Result of a command, sent to the page as JSON.

    Attributes:
        message: for the user.
        failed: whether the command failed.
        row: of the image if undo restored a single one, else None.
        decision: that the file has for the image of a command on one image, empty without one; None if not known.
    """

    message: str
    failed: bool = False
    row: int | None = None
    decision: str | None = None


def run_command(source: Source, sessions: OverrideSessions, command: Mapping[str, Any]) -> CommandResult:
    """Run the command of a key or a button.

    Args:
        source: of the images.
        sessions: overrides by page.
        command: `action` keep, drop, relabel, clear, keep-selection, drop-selection, undo or undo-image;
            `rows` of the images;
            `label`, the index of the new class for relabel; `generation` of the points on the page; `note`; `page`, an
            id of the open page. If the files have been replaced since, nothing is written, as the rows may belong to
            other images.
    """
    action, decisions = str(command.get("action")), sessions.for_page(str(command.get("page")))
    try:
        if action == "undo":
            return _undo_result(source, decisions.undo(), command.get("generation"))
        if action == "undo-image":
            points = _points_of(source, command)
            images = _images(points, command.get("rows"))
            if len(images) > 1:
                raise _StaleCommandError("Not one image")
            return CommandResult(message=decisions.undo_image(images[0]).message)
        if action not in _DECISIONS:
            raise _StaleCommandError("No such command")
        points = _points_of(source, command)
        images = _images(points, command.get("rows"))
        note, decision = command.get("note"), _DECISIONS[action]
        label = _class_name(points, command.get("label")) if decision == "relabel" else ""
        saved = decisions.decide(images, decision, note if isinstance(note, str) else "", label=label)
    except _StaleCommandError as error:
        return CommandResult(message=f"NOT SAVED: {error}. Reload the page.", failed=True)
    except InputError as error:
        return CommandResult(message=f"NOT SAVED: {error}", failed=True)
    return CommandResult(message=saved.message, decision=_saved_decision(source, images))


def selection_command(source: Source, selection: Mapping[str, Any], map_controls: MapControls) -> dict[str, Any]:
    """Return the selected images that are shown, to which the buttons apply."""
    nothing = {"generation": selection["generation"], "rows": []}
    try:
        shown = map_controls.state(source).shown
        if not selection["rows"] or current_points(source, selection["generation"]) is None:
            return nothing
    except InputError:
        # The map shows the error.
        return nothing
    return {**nothing, "rows": [row for row in selection["rows"] if row < len(shown) and shown[row]]}


def current_points(source: Source, generation: Any) -> Points | None:
    """Return the points of a page; None if the files have been replaced since.

    Raises:
        InputError: the files cannot be read.
    """
    if not isinstance(generation, str):
        return None
    points = source.points(generation.partition(" ")[0])
    return points if points.generation == generation else None


def register(app: Dash, source: Source) -> None:
    """Register the callback, and the route that receives one command at a time; see assets/page.js."""
    sessions = OverrideSessions(source.data.overrides)

    def answer() -> dict[str, Any]:
        command = request.get_json(silent=True)
        done = run_command(source, sessions, command if isinstance(command, dict) else {})
        return {**asdict(done), "edited": source.overrides_stamp()}

    app.server.add_url_rule("/decide", view_func=answer, methods=["POST"])
    app.callback(
        Output("offered", "data"),
        Input("selection", "data"),
        *(Input(*control) for control in MAP_CONTROLS),
    )(lambda selection, *values: selection_command(source, selection, parse_controls(values)))


class _StaleCommandError(Exception):
    """The command does not fit what the page shows."""


def _points_of(source: Source, command: Mapping[str, Any]) -> Points:
    points = current_points(source, command.get("generation"))
    if points is None:
        raise _StaleCommandError("A stage has written new files since this page was loaded")
    return points


def _images(points: Points, rows: Any) -> list[Image]:
    # By type: True is an int in Python.
    if not isinstance(rows, list) or not rows or not all(type(row) is int and 0 <= row < len(points) for row in rows):
        raise _StaleCommandError("No such image")
    return [Image(points.paths[row].as_py(), points.sha256[row].as_py()) for row in rows]


def _saved_decision(source: Source, images: list[Image]) -> str | None:
    """Return the decision that the file has for one image, empty without one; None for several images."""
    if len(images) != 1:
        return None
    try:
        lines = read_overrides(source.data.overrides) if source.data.overrides.exists() else []
    except InputError:
        # The map shows the error.
        return None
    found = [line.decision for line in lines if Image(line.path, line.sha256) == images[0]]
    return found[-1] if found else ""


def _class_name(points: Points, label: Any) -> str:
    if type(label) is not int or not 0 <= label < len(points.class_names):
        raise _StaleCommandError("No such class")
    return points.class_names[label]


def _undo_result(source: Source, undone: SaveResult | None, generation: Any) -> CommandResult:
    if undone is None:
        return CommandResult(message="Nothing to undo on this page.")
    row = None
    try:
        points = current_points(source, generation)
        if points is not None and len(undone.images) == 1:
            row = points.rows.get(undone.images[0].path)
    except InputError:
        # Undo does not need the points.
        pass
    return CommandResult(message=undone.message, row=row)
