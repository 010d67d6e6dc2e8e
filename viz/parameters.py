"""Write the settings of a preview to params.yaml, after the user has seen the diff."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import check_params
from pipeline.config.yaml_reading import parse_yaml, read_yaml_text
from pipeline.errors import InputError
from viz.atomic_write import ConcurrentEditError, exclusive, file_state, replacing
from viz.yaml_text import with_value, without


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Change of a parameter file.

    Attributes:
        file: to change.
        old_text, new_text: with their line ends.
        difference: lines of the unified diff without line ends; empty if nothing changes.
    """

    file: Path
    old_text: str
    new_text: str
    difference: tuple[str, ...]


def propose(file: Path, changes: Mapping[str, object]) -> Proposal:
    """Return `changes` of a parameter file as a proposal. Nothing is written.

    All other bytes stay: comments, order, quotes, widths. A value that does not change keeps its notation.

    Args:
        file: the parameter file.
        changes: dotted key, e.g. `filter.scorer.min_samples`, to its value. None removes the key; a mapping replaces
            the whole section.

    Raises:
        InputError: the file cannot be read; the file with `changes` is invalid, see `load_params`; or a key cannot
            change alone, because an anchor shares it with others.
    """
    old_text = text = read_yaml_text(file)
    source = str(file)
    tree = _plain(parse_yaml(text, source=source))
    # Removals come last, so that a section that gets another key is never empty.
    for key, value in sorted(changes.items(), key=lambda change: change[1] is None):
        keys = key.split(".")
        section, depth = _innermost(tree, keys, source)
        if value is not None:
            new_value = json.loads(json.dumps(value))
            for missing in reversed(keys[depth + 1 :]):
                new_value = {missing: new_value}
            section[keys[depth]] = new_value
            text = with_value(text, keys[: depth + 1], new_value)
        elif depth + 1 == len(keys):
            section.pop(keys[-1], None)
            text = without(text, keys)
        _check_meaning(text, tree, f"{source}: {key}")
    check_params(tree, source=source)
    lines = difflib.unified_diff(
        old_text.splitlines(), text.splitlines(), fromfile=source, tofile=f"{source} (proposed)", lineterm=""
    )
    return Proposal(file=file, old_text=old_text, new_text=text, difference=tuple(lines))


def write(proposal: Proposal) -> None:
    """Write the proposed text atomically. The file keeps its mode.

    Raises:
        InputError: the file does not have the old text any more, or is read-only; the disk is full. Then the file
            does not change.
    """
    file = proposal.file
    if proposal.new_text == proposal.old_text:
        return
    with exclusive(file):
        state = file_state(file)
        try:
            if read_yaml_text(file) != proposal.old_text:
                raise ConcurrentEditError
            with replacing(file, state) as temporary:
                temporary.write_bytes(proposal.new_text.encode())
        except ConcurrentEditError:
            raise InputError(f"{file}: has changed since the difference was shown; open the dialog again") from None


def changes_for(
    scorer: Mapping[str, Any],
    *,
    eps: float | None = None,
    drop_fraction: float | None = None,
    threshold: float | None = None,
) -> dict[str, object]:
    """Return the changes that give the `filter` section the settings of a preview.

    Pass exactly one of `eps`, `drop_fraction` and `threshold`. The other two are removed, and so is `allocation`: a
    preview has one threshold for all classes. Numbers are rounded to 6 significant digits.

    Args:
        scorer: name and options, as in params.yaml.
        eps: radius in units of the space of the scorer dbscan; greater than 0.
        drop_fraction: of all images, for every network; 0 to less than 1.
        threshold: in the unit of the scorer; greater than 0.
    """
    limits = {"eps": eps, "drop_fraction": drop_fraction, "threshold": threshold}
    assert sum(value is not None for value in limits.values()) == 1, limits
    changes: dict[str, object] = {"filter.scorer": dict(scorer), "filter.allocation": None}
    for key, value in limits.items():
        changes[f"filter.{key}"] = None if value is None else float(f"{value:.6g}")
    return changes


def _plain(tree: Any) -> Any:
    """Return the tree as plain JSON values, without tuples and without objects that aliases share."""
    return json.loads(json.dumps(tree, default=str))


def _innermost(tree: Any, keys: Sequence[str], source: str) -> tuple[dict[str, Any], int]:
    """Return the deepest existing mapping on the path `keys`, and the number of keys that lead to it."""
    for depth, key in enumerate(keys):
        if not isinstance(tree, dict):
            raise InputError(
                f"{source}: {'.'.join(keys[:depth]) or '(top level)'}: is not a mapping; add {key} by hand"
            )
        if depth + 1 == len(keys) or key not in tree:
            break
        tree = tree[key]
    return tree, depth


def _check_meaning(text: str, tree: Any, where: str) -> None:
    """Check that the text parses to `tree`."""
    try:
        is_same = _plain(parse_yaml(text, source=where)) == tree
    except InputError:
        is_same = False
    if not is_same:
        raise InputError(f"{where}: cannot change alone (anchor, alias or empty section); edit the file by hand")
