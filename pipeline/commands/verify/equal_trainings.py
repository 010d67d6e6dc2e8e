"""Find runs that are recorded as different trainings and have equal bits.

A link of a hash chain hashes sample ids and weights, so two trainings share no link, and no losses from then on. Runs
may be one training for a while: until their batch sizes, learning rates or images differ. So two runs with equal bits
after a step are compared in what decides the bits up to that step. A setting whose effect may be lost in rounding, or
may be none, accuses nobody: see `_decide_otherwise`.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pipeline.commands.verify.findings import Findings
from pipeline.commands.verify.recorded import StoredRun
from pipeline.config.extractors import is_timm
from pipeline.training.settings import TrainSettings

_LOSSES = 3
"""Losses in a row that no two trainings share; a single one of them may be equal by chance."""
_COMPARED = 4
"""Runs with equal bits that another one is compared with, at most."""
_RATES = 50
"""Learning rates of a run that are compared, at most."""
_TOLERANCE = 1e-3
_SMALLEST_DECAY = 1e-6
"""Least product of learning rate and weight decay that changes a weight: float32 rounds by 6e-8."""
_SMALLEST_SUM = {"hash chain": 1e-4, "training curve": 1e-2}
"""Least sum of learning rates over the updates that changes weights, and that changes losses."""
_OPTIONS = ("momentum", "nesterov", "beta1", "beta2", "trust_coefficient")
"""Options of an optimizer that change its updates from the second one on; `eps` may be below the rounding."""


class _Trace(NamedTuple):
    """Bits of a run that no other training has.

    Attributes:
        bits: equal texts are equal bits.
        step: after which the run had them.
        n_updates: of the weights before.
        is_finite: whether weights and losses were finite.
    """

    kind: str
    bits: str
    step: int
    n_updates: int
    is_finite: bool


@dataclass(frozen=True)
class ComparedRun:
    """A recorded run as far as it is compared with others.

    Attributes:
        settings: None if another version of the code recorded them: then only the seed is compared.
    """

    run: StoredRun
    settings: TrainSettings | None

    @classmethod
    def of(cls, run: StoredRun) -> "ComparedRun":
        """Return a run to compare, whose values are of the right types.

        Raises:
            TypeError, ValueError, AttributeError, LookupError: they are not.
        """
        training = cls(run, run.settings)
        _ = training.seed, training.image_settings, training.options
        return training

    @cached_property
    def seed(self) -> str:
        """The seed, as text."""
        settings = self.run.key.job.get("settings", {}) if self.run.key else {}
        return json.dumps(self.settings.seed if self.settings else settings.get("seed"))

    @cached_property
    def image_settings(self) -> tuple[float, bool]:
        """Label smoothing, and whether images are flipped: each changes the first loss."""
        return (float(self.settings.label_smoothing), bool(self.settings.flip)) if self.settings else (0.0, False)

    @cached_property
    def options(self) -> tuple[str, Mapping[str, float]]:
        """The optimizer and those of its options that change updates."""
        if self.settings is None:
            return "", {}
        options = self.settings.optimizer_options
        return str(self.settings.optimizer), {name: float(options[name]) for name in _OPTIONS if name in options}

    def epochs(self, step: int) -> float:
        """Return the passes over its images after a step, at least."""
        return max((record.epoch for record in self.run.result.history if record.step <= step), default=0.0)

    def traces(self) -> Iterator[_Trace]:
        """Yield each link of the hash chain, and the losses in a row."""
        result = self.run.result
        losses = [
            (record.step, record.train_loss)
            for record in result.history
            if record.train_loss is not None and math.isfinite(record.train_loss)
        ]
        finite_until = math.inf if result.status == "finished" else max((step for step, _ in losses), default=0)
        for link in result.links:
            yield _Trace("hash chain", link.sha256, link.step, link.step, link.step <= finite_until)
        n = min(_LOSSES, len(losses))
        if n < 2:
            return  # rate and weight decay change no loss before the second step
        for start in range(len(losses) - n + 1):
            window = losses[start : start + n]
            values = {loss for _, loss in window}
            # A network that has learned everything, or nothing, may have one loss at each record.
            if len(values) == n and 0.0 not in values:
                step = window[-1][0]
                yield _Trace("training curve", json.dumps(window), step, step - 1, is_finite=True)


def check_equal_trainings(trainings: Sequence[ComparedRun], findings: Findings) -> None:
    """Add each run that has bits of another training; a run is named once."""
    groups: dict[tuple[str, str], list[tuple[ComparedRun, _Trace]]] = defaultdict(list)
    for training in trainings:
        for trace in training.traces():
            groups[trace.kind, trace.bits].append((training, trace))
    found = set()
    for (kind, _), members in groups.items():
        # First those with settings, which show more.
        ordered = sorted(members, key=lambda member: member[0].settings is None)
        for index, (other, trace) in enumerate(ordered):
            for one, earlier in ordered[: min(index, _COMPARED)]:
                if other.run.fingerprint in found or other.run is one.run:
                    break
                with findings.collecting_errors(other.run.folder):
                    if _decide_otherwise(one, other, trace, earlier):
                        found.add(other.run.fingerprint)
                        what = f"{kind} of run {other.run.fingerprint}, {_named(other)}, at step {trace.step}"
                        value = f"that of run {one.run.fingerprint}, {_named(one)}"
                        findings.differs(other.run.folder, what, value, "its own")


def _named(training: ComparedRun) -> str:
    settings = training.settings
    return f"batch {settings.batch_size}, seed {settings.seed}" if settings else "settings of another version"


def _decide_otherwise(one: ComparedRun, other: ComparedRun, trace: _Trace, earlier: _Trace) -> bool:
    """Return whether what two runs record must have made their bits differ up to a step, on any machine.

    Left out is what may change no bit: evaluations, samples of the gradient noise, processes, the clipping of gradients
    that are small, BatchNorm groups of a network without BatchNorm, the precision of a CPU, later stages of a schedule,
    another test set, and a weight average, which no loss depends on.
    """
    if one.seed != other.seed:
        return True
    first, second = one.settings, other.settings
    # Weights that are not a number are equal, whatever made them so.
    if first is None or second is None or not (trace.is_finite and earlier.is_finite):
        return False
    if one.run.key == other.run.key and first == second:
        return False
    if _networks_differ(first, second) or _sizes(first, trace.step) != _sizes(second, trace.step):
        return True
    (smoothing, flip), (other_smoothing, other_flip) = one.image_settings, other.image_settings
    if abs(smoothing - other_smoothing) > _TOLERANCE or flip != other_flip:
        return True
    if trace.kind == "hash chain" and (first.ema_decay is None) != (second.ema_decay is None):
        return True
    return _images_differ(one, other, trace.step) or _updates_differ(one, other, trace)


def _networks_differ(first: TrainSettings, second: TrainSettings) -> bool:
    """Return whether two networks have different layers; timm has several names for some."""
    names = (first.network, second.network)
    return names[0] != names[1] and not any(is_timm(name) for name in names)


def _sizes(settings: TrainSettings, step: int) -> list[tuple[int, int]]:
    """Return the batch size and number of steps of each stage up to a step."""
    sizes: list[tuple[int, int]] = []
    for size, count in settings.batch_sizes.steps_per_stage(step):
        if sizes and sizes[-1][0] == size:
            sizes[-1] = (size, sizes[-1][1] + count)
        elif count > 0:
            sizes.append((size, count))
    return sizes


def _images_differ(one: ComparedRun, other: ComparedRun, step: int) -> bool:
    """Return whether two runs on the same data have used all images of their arms, which differ.

    Before an epoch ends they may have used the same: arms use images in one order.
    """
    first, second = one.run.key, other.run.key
    if first is None or second is None or min(one.epochs(step), other.epochs(step)) < 1:
        return False
    same_content = bool(first.content) and first.content == second.content
    if first.job.get("data") != second.job.get("data") and not same_content:
        return False
    return any(first.job.get(part) != second.job.get(part) for part in ("members", "labels"))


def _updates_differ(one: ComparedRun, other: ComparedRun, trace: _Trace) -> bool:
    """Return whether two runs updated their weights otherwise, by more than rounding hides."""
    first, second = one.settings, other.settings
    assert first is not None
    assert second is not None
    n = trace.n_updates
    # Where a loss scaler skips steps, settings of the updates have no effect.
    if n < 1 or one.run.result.skipped_steps or other.run.result.skipped_steps:
        return False
    steps = sorted({round(i * (n - 1) / (_RATES - 1)) for i in range(_RATES)})
    rates = [(first.lr_at(step), second.lr_at(step)) for step in steps]
    smallest_sum = _SMALLEST_SUM[trace.kind]

    def total(values: Sequence[float]) -> float:
        return n * sum(values) / len(values)

    rates_differ = any(not math.isclose(rate, other_rate, rel_tol=_TOLERANCE) for rate, other_rate in rates)
    if rates_differ and total([abs(rate - other_rate) for rate, other_rate in rates]) > smallest_sum:
        return True
    lowest = [min(pair) for pair in rates]
    if total(lowest) <= smallest_sum:
        return False
    decay = abs(first.weight_decay - second.weight_decay)
    if decay * max(lowest) > _SMALLEST_DECAY and decay * total(lowest) > smallest_sum / 10:
        return True
    (name, options), (other_name, other_options) = one.options, other.options
    return name != other_name or (n > 1 and _options_differ(options, other_options))


def _options_differ(options: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    common = options.keys() & other.keys()
    return any(not math.isclose(options[name], other[name], abs_tol=_TOLERANCE / 10) for name in common)
