"""Decisions of people: one image or a selection kept or dropped, undone, and parameters written."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, html, no_update

from pipeline.errors import InputError
from viz.callbacks.exploring import Asked, asked_of, drawn_from
from viz.data import Source
from viz.decisions import Decision, Decisions, Image
from viz.look import rule_from_json
from viz.parameters import Proposal, changes_for, propose, write
from viz.rules import WRITTEN, threshold_of

_MOST_PAGES = 100

_DECISIONS: Mapping[str, Decision] = {
    "keep": "keep",
    "drop": "drop",
    "keep-selection": "keep",
    "drop-selection": "drop",
}


class Desk:
    """Where the pages open in browsers have their decisions written, each with an undo of its own."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._pages: dict[str, Decisions] = {}

    def of_page(self, page: str) -> Decisions:
        """The decisions made on one open page."""
        with self._lock:
            found = self._pages.pop(page, None) or Decisions(self._source.data.overrides)
            self._pages[page] = found
            while len(self._pages) > _MOST_PAGES:
                del self._pages[next(iter(self._pages))]
            return found


def carry_out(
    source: Source,
    desk: Desk,
    command: Mapping[str, Any],
    drawn: Mapping[str, Any] | None,
    *,
    selection: Sequence[int] = (),
    asked: Asked | None = None,
    note: str = "",
) -> tuple[str, bool]:
    """What was done, in words, and whether anything was written.

    Args:
        command: `action` keep, drop, keep-selection, drop-selection or undo; `row`; `page`, a name of the
            open page. Anything else does nothing.
        drawn: what the map shows, see `exploring.draw`: where the files have been replaced since, nothing
            is written, as the rows may be other images now.
        selection: rows.
        asked: what is shown; images of the selection that have been filtered away since are left alone.
    """
    action, decisions = command.get("action"), desk.of_page(str(command.get("page")))
    try:
        if action == "undo":
            undone = decisions.undo()
            return ("Nothing to undo on this page.", False) if undone is None else (undone.sentence, undone.written > 0)
        decision = _DECISIONS.get(str(action))
        if decision is None or drawn is None:
            return "No such command: nothing was saved; reload.", False
        points = source.points(str(drawn.get("network")))
        if not drawn_from(drawn, points):
            return "A stage has written new files since this page was drawn: nothing was saved; reload.", False
        rows = selection if str(action).endswith("-selection") else [command.get("row")]
        if not rows or not all(type(row) is int and 0 <= row < len(points) for row in rows):
            return "No such image: nothing was saved; reload.", False
        if asked is not None and rows is selection:
            shown = asked.look(source).shown
            rows = [row for row in rows if shown[row]]
        images = [Image(points.paths[row].as_py(), points.sha256[row].as_py()) for row in rows]
        saved = decisions.decide(images, decision, note)
    except InputError as error:
        return f"Not saved: {error}", False
    return saved.sentence, saved.written > 0


def propose_rule(source: Source, params: Path, network: str, kept: Mapping[str, Any] | None) -> Proposal:
    """What params.yaml would say if the filter were to do as the rule.

    Raises:
        InputError: params.yaml has no place for it, or is damaged.
    """
    points, rule = source.points(network), rule_from_json(kept)
    if rule.own:
        raise InputError(f"{params}: holds one limit for all classes; move the sliders with `Settings of` all classes")
    if rule.judge == WRITTEN and rule.limit.threshold is None:
        raise InputError(f"{params}: these are the settings that the filter has used; move a slider first")
    scorer = points.scorer if rule.judge == WRITTEN else rule.scorer
    threshold = threshold_of(source, points, rule)
    limit = {"eps": threshold} if scorer["name"] == "dbscan" else {"threshold": threshold}
    return propose(params, changes_for(scorer, **limit))


def show_difference(source: Source, params: Path, network: str, kept: Mapping[str, Any] | None) -> tuple[str, bool]:
    """The lines that would change, or why none can, and whether there is something to write."""
    try:
        difference = propose_rule(source, params, network, kept).difference
    except InputError as error:
        return str(error), False
    return "\n".join(difference) or f"{params} says so already.", bool(difference)


def write_rule(source: Source, params: Path, network: str, kept: Mapping[str, Any] | None, shown: str) -> str:
    """Write what was shown, and only that; what was done, in words."""
    try:
        proposal = propose_rule(source, params, network, kept)
        if "\n".join(proposal.difference) != shown:
            return "Not written: the file or the settings have changed meanwhile; close and look again."
        write(proposal)
    except InputError as error:
        return f"Not written: {error}"
    return f"Written to {params}. `dvc repro` runs the filter and what follows it with that."


def register(app: Dash, source: Source, params: Path) -> None:
    """Tie the functions above to the page's controls."""
    desk = Desk(source)

    @app.callback(
        Output("saved", "children"),
        Output("edited", "data"),
        Input("command", "data"),
        State("drawn", "data"),
        State("selection", "data"),
        State("note", "value"),
        State("edited", "data"),
        *(State(name, prop) for name, prop in (("network", "value"), ("rule", "data"))),
        *(State(name, "value") for name in ("classes", "scores")),
        prevent_initial_call=True,
    )
    def _carry_out(
        command: Any, drawn: Any, selection: Any, note: str | None, edited: int, *values: Any
    ) -> tuple[Any, Any]:
        if not command:
            return no_update, no_update
        said, changed = carry_out(
            source, desk, command, drawn, selection=selection or (), asked=asked_of(values), note=note or ""
        )
        return said, edited + 1 if changed else no_update

    @app.callback(
        Output("difference", "children"),
        Output("write", "disabled"),
        Output("written", "children"),
        Input("propose", "n_clicks"),
        State("network", "value"),
        State("rule", "data"),
        prevent_initial_call=True,
    )
    def _show(_clicks: int, network: str, kept: Any) -> tuple[str, bool, str]:
        difference, any_change = show_difference(source, params, network, kept)
        return difference, not any_change, ""

    app.callback(
        Output("written", "children", allow_duplicate=True),
        Output("write", "disabled", allow_duplicate=True),
        Input("write", "n_clicks"),
        State("network", "value"),
        State("rule", "data"),
        State("difference", "children"),
        prevent_initial_call=True,
    )(lambda _clicks, network, kept, shown: (write_rule(source, params, network, kept, shown), True))

    @app.callback(
        Output("banner", "children"), Input("clock", "n_intervals"), State("network", "value"), State("drawn", "data")
    )
    def _watch(_n: int, network: str, drawn: Any) -> Any:
        return news(source, network, drawn)


def news(source: Source, network: str, drawn: Mapping[str, Any] | None) -> Any:
    """A line where a stage has replaced the files that the map shows."""
    if drawn is None:
        return None
    try:
        points = source.points(network)
    except InputError as error:
        return f"The files shown are gone or being written: {error}"
    if drawn.get("network") == network and not drawn_from(drawn, points):
        return html.Span(["A stage has written new files. ", html.A("Show them", href="")])
    return None
