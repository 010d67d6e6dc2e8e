"""What is tried out in the visualizer, written into params.yaml once a person has seen the difference."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import check_params, parse_params, read_params_text
from pipeline.errors import InputError
from viz.atomic_write import ConcurrentEditError, exclusive, file_state, replacing
from viz.yaml_text import with_value, without


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A parameter file as it is and as it would be; both texts with their line ends.

    Attributes:
        difference: lines of a unified diff without line ends; none where nothing changes.
    """

    file: Path
    old_text: str
    new_text: str
    difference: tuple[str, ...]


def propose(file: Path, changes: Mapping[str, object]) -> Proposal:
    """What `changes` would make of a parameter file; writes nothing.

    Every other byte stays: comments, order, quotes, widths. A value that is there already stays as
    it is written.

    Args:
        changes: dotted key, e.g. `filter.scorer.min_samples`, to its value; None removes the key, a
            mapping takes the place of all that stood there.

    Raises:
        InputError: the file cannot be read; with `changes` it is not valid, as `load_params` says; or a
            key cannot change alone, as an anchor ties it to others.
    """
    old_text = text = read_params_text(file)
    source = str(file)
    tree = _plain(parse_params(text, source=source))
    # Removed last: a section that loses its only key for another one is never empty.
    for key, value in sorted(changes.items(), key=lambda change: change[1] is None):
        keys = key.split(".")
        section, depth = _innermost(tree, keys, source)
        if value is not None:
            wanted = json.loads(json.dumps(value))
            for missing in reversed(keys[depth + 1 :]):
                wanted = {missing: wanted}
            section[keys[depth]] = wanted
            text = with_value(text, keys[: depth + 1], wanted)
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
    """Write the proposed text, atomically; the file keeps its mode.

    Raises:
        InputError: the file no longer holds the old text, or is read-only; the disk is full. Then it
            stays as it is.
    """
    file = proposal.file
    if proposal.new_text == proposal.old_text:
        return
    with exclusive(file):
        state = file_state(file)
        try:
            if read_params_text(file) != proposal.old_text:
                raise ConcurrentEditError
            with replacing(file, state) as temporary:
                temporary.write_bytes(proposal.new_text.encode())
        except ConcurrentEditError:
            raise InputError(f"{file}: has changed meanwhile; look at the difference again") from None


def changes_for(
    scorer: Mapping[str, Any],
    *,
    eps: float | None = None,
    drop_fraction: float | None = None,
    threshold: float | None = None,
) -> dict[str, object]:
    """The changes by which the `filter` section says what is tried out.

    Exactly one of the three rules is given; the other two are removed, and `allocation` too: what is tried out
    is one limit for all classes. Numbers are rounded to 6 significant digits.

    Args:
        scorer: its name and options, as in params.yaml.
        eps: radius, in units of what the scorer dbscan looks at; greater than 0.
        drop_fraction: of all images, for every network; 0 to less than 1.
        threshold: in the scorer's own unit; greater than 0.
    """
    rules = {"eps": eps, "drop_fraction": drop_fraction, "threshold": threshold}
    assert sum(value is not None for value in rules.values()) == 1, rules
    changes: dict[str, object] = {"filter.scorer": dict(scorer), "filter.allocation": None}
    for rule, value in rules.items():
        changes[f"filter.{rule}"] = None if value is None else float(f"{value:.6g}")
    return changes


def _plain(tree: Any) -> Any:
    """Keys and values alone, as the checks see them: no tuples, and nothing shared between aliases."""
    return json.loads(json.dumps(tree, default=str))


def _innermost(tree: Any, keys: Sequence[str], source: str) -> tuple[dict[str, Any], int]:
    """The mapping of `tree` that comes nearest to holding the last of `keys`, and how many of them lead to it."""
    for depth, key in enumerate(keys):
        if not isinstance(tree, dict):
            raise InputError(f"{source}: {'.'.join(keys[:depth]) or '(top level)'}: holds no keys; add {key} by hand")
        if depth + 1 == len(keys) or key not in tree:
            break
        tree = tree[key]
    return tree, depth


def _check_meaning(text: str, tree: Any, where: str) -> None:
    try:
        same = _plain(parse_params(text, source=where)) == tree
    except InputError:
        same = False
    if not same:
        raise InputError(
            f"{where}: cannot change alone (anchors, aliases, a section left empty); edit the file by hand"
        )
