"""Dialogs of the page."""

from collections.abc import Sequence

from dash import dcc, html

from viz.components import aria_label

PROPOSAL_KINDS = {"share": "dropped fraction, for all networks", "limit": "threshold"}
"""Key -> name of what the dialog writes to params.yaml."""
KEYS: Sequence[tuple[tuple[str, ...], str]] = (
    (("K",), "keep the image"),
    (("D",), "drop it"),
    (("R",), "keep it with another label: choose a class, by arrows or its first letters, and press Enter"),
    (("C",), "clear the override: the filter decides"),
    (("U",), "undo the last action of this window"),
    (("←", "→", "↑", "↓"), "choose an image"),
    (("N",), "Review: the next image without a decision"),
    (("Page Up", "Page Down"), "turn a page of the gallery"),
    (("Esc",), "remove the selection"),
    (("?",), "show or hide this list"),
)
"""Keys, and what they do."""


def dialogs(classes: Sequence[tuple[int, str]]) -> list[html.Dialog]:
    """Return all dialogs, closed.

    Args:
        classes: label and name of each class that an image can get.
    """
    return [_parameters_dialog(), _relabel_dialog(classes), _help_dialog()]


def _help_dialog() -> html.Dialog:
    lines = [
        html.Tr([html.Td([part for key in keys for part in (html.Kbd(key), " ")]), html.Td(does)])
        for keys, does in KEYS
    ]
    return html.Dialog(
        [html.H2("Keys"), html.Table(html.Tbody(lines)), html.Button("Close", id="help-close")], id="help"
    )


def _parameters_dialog() -> html.Dialog:
    return html.Dialog(
        [
            html.H2("Write to params.yaml"),
            dcc.RadioItems(PROPOSAL_KINDS, "share", id="write-as", inline=True, className="tabs"),
            html.Pre(id="difference"),
            html.P(id="written", role="status"),
            html.Div(
                [html.Button("Write", id="write"), html.Button("Close", id="close")],
                className="buttons",
            ),
        ],
        id="dialog",
    )


def _relabel_dialog(classes: Sequence[tuple[int, str]]) -> html.Dialog:
    """Return the choice of a class. The browser's own list finds a class by the letters typed; see assets/page.js."""
    return html.Dialog(
        [
            html.H2("New label"),
            html.P(id="relabel-from"),
            html.Select(
                [html.Option(label=name, value=str(label)) for label, name in classes],
                id="new-label",
                size=12,
                **aria_label("new label"),
            ),
            html.Div(
                [html.Button("Relabel", id="relabel-confirm"), html.Button("Cancel", id="relabel-cancel")],
                className="buttons",
            ),
        ],
        id="relabel-dialog",
    )
