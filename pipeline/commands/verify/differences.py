"""Compare a run that was trained again with its record, and bound the step from which they differ.

The record has a hash of all bits at each link of the chain, and single numbers at each record of the curve. Both
trainings have equal bits through the last equal link. They differ at the first other link, or before it at the first
number after the equal link that differs. The record has no hash of the steps between, so it bounds the step no closer.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.commands.verify.findings import shown
from pipeline.commands.verify.studies import StudyRun
from pipeline.runs.ledger import RunResult
from pipeline.training.hash_chain import first_difference
from pipeline.training.state import ChainLink

_CURVE = {"lr": "learning rate", "train_loss": "training loss", "top1": "top-1"}
# A number that follows from the bits of the state alone. The test accuracy also depends on the size of the evaluation's
# passes, which no key has.
_OF_BITS = "training loss"


def differences(recorded: RunResult, again: RunResult) -> list[str]:
    """Return what differs; first, if the hash chains do, the steps between which the two trainings part."""
    curve = list(_curve_differences(recorded, again))
    found = [text for text in [_parting(recorded, again, curve)] if text]
    found += [f"{words} at step {step}: {values}" for step, words, values in curve[:1]]
    if len(recorded.history) != len(again.history):
        found.append(f"records of the curve: {len(recorded.history)}, expected {len(again.history)}")
    if (noise := _finite(recorded.critical_batch)) != (expected_noise := _finite(again.critical_batch)):
        found.append(f"critical batch size: {shown(noise)}, expected {shown(expected_noise)}")
    found += [
        f"{name}: {shown(getattr(recorded, name))}, expected {shown(getattr(again, name))}"
        for name in ("status", "top1", "balanced_accuracy", "skipped_steps")
        if getattr(recorded, name) != getattr(again, name)
    ]
    answers, expected = _answers(recorded), _answers(again)
    if not np.array_equal(answers, expected):
        n_wrong = int((answers != expected).sum()) if answers.shape == expected.shape else len(answers)
        found.append(f"test answers that differ: {n_wrong}, expected 0")
    if not _same_loss(recorded.loss, again.loss):
        found.append(f"test loss: {shown(recorded.loss)}, expected {shown(again.loss)}")
    return found


def differing_part(run: StudyRun, recorded: RunResult, again: RunResult, *, is_kept: Callable[[int], bool]) -> StudyRun:
    """Return the part of a run that shows a difference from its record: from a checkpoint before it to the next link.

    Args:
        again: the result of another training of the whole run.
        is_kept: whether the checkpoint of a step is kept.

    Returns:
        A segment from the last link with a checkpoint through which chains and curves agree, or from the start. It ends
        at the first link that differs, or before which the curve does; or at the end of the run.
    """
    wrong = next((step for step, _, _ in _curve_differences(recorded, again)), math.inf)
    n_equal = 0
    for one, other in zip(recorded.links, again.links, strict=False):
        if (one.step, one.sha256) != (other.step, other.sha256) or one.step >= wrong:
            break
        n_equal += 1
    n_links = n_equal + 1 if n_equal + 1 < len(recorded.links) else None
    if [link.step for link in recorded.links[:n_links]] != [link.step for link in again.links[:n_links]]:
        return run  # recorded with links at other steps, which a training of this part does not have
    first = min(n_equal, len(recorded.links) - 1)
    while first and not is_kept(recorded.links[first - 1].step):
        first -= 1
    return replace(run, first_link=first, n_links=n_links)


def _parting(recorded: RunResult, again: RunResult, curve: Sequence[tuple[int, str, str]]) -> str | None:
    """Return between which steps the chains show the first difference, and in what; None if the chains are equal."""
    chains = first_difference(recorded.links, again.links)
    if chains is None:
        return None
    equal, differs = chains
    where = f"hash of {_first_group(recorded.links, again.links, differs)}"
    # Equal numbers prove no equal bits, but a number that differs proves a difference at its step or before.
    for step, words, _ in curve:
        if equal < step < differs and words == _OF_BITS:
            where, differs = f"{words}; the next hash, at step {differs}, differs too", step
            break
    if differs <= equal + 1:
        return f"first differs at step {differs} ({where})"
    return f"first differs between step {equal} and step {differs} ({where}); no hash was recorded in between"


def _first_group(recorded: Sequence[ChainLink], again: Sequence[ChainLink], step: int) -> str:
    """Return the first group of tensors whose digest differs at a step; the state if the links do not tell."""
    one, other = ({link.step: link for link in chain}.get(step) for chain in (recorded, again))
    for (name, digest), (other_name, expected) in zip(
        one.groups if one else (), other.groups if other else (), strict=False
    ):
        if (name, digest) != (other_name, expected):
            return shown(other_name)
    return "the state"


def _curve_differences(recorded: RunResult, again: RunResult) -> Iterator[tuple[int, str, str]]:
    """Yield step, name and values of each value of the curve that differs, the first step first.

    It ends at the first record of another step.
    """
    for one, other in zip(recorded.history, again.history, strict=False):
        if one.step != other.step:
            # Values of two steps prove nothing.
            yield min(one.step, other.step), "step", f"{one.step}, expected {other.step}"
            return
        for name, words in _CURVE.items():
            value, expected = getattr(one, name), getattr(other, name)
            if value != expected:
                yield other.step, words, f"{shown(value)}, expected {shown(expected)}"
        if not _same_loss(one.test_loss, other.test_loss):
            yield other.step, "test loss", f"{shown(one.test_loss)}, expected {shown(other.test_loss)}"


def _finite(noise: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the values as a record has them, where infinity is null."""
    if noise is None:
        return None
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in noise.items()
    }


def _answers(result: RunResult) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.empty(0, dtype=np.bool_) if result.correct is None else result.correct


def _same_loss(value: float | None, expected: float | None) -> bool:
    """Return whether two test losses agree: an evaluation in other passes, which no key has, rounds differently."""
    if value is None or expected is None:
        return value is expected
    return math.isclose(value, expected, rel_tol=1e-5)
