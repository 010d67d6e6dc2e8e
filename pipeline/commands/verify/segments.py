"""Audit segments of runs, from one kept checkpoint to the next link of the hash chain.

A kept checkpoint is the state of a run at a link, so its bits are in the recorded chain: the link computed from it must
be the recorded one. If every segment ends in its recorded link, so does the run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch.optim import Optimizer

from pipeline.batching import SampleStream
from pipeline.commands.verify.recorded import Project
from pipeline.commands.verify.retraining import AuditSample, Retrain, choose_runs, retrainer
from pipeline.commands.verify.studies import StudyRun, VerifiedStudy
from pipeline.distributed import Grids, World
from pipeline.errors import InputError
from pipeline.run_log import RunLog
from pipeline.runs.checkpoints import has_kept, kept_checkpoint, load_kept
from pipeline.runs.ledger import RunResult
from pipeline.training.checkpointing import Checkpointer, stop_and_save_flags
from pipeline.training.hash_chain import HashChain
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState

_NOT_KEPT = "no checkpoint is kept at a link of its hash chain (studies.NAME.keep_checkpoints); train the whole run"
_ERROR_FEEDBACK = "trained with PowerSGD, whose error feedback no link of a hash chain has; train the whole run"
_EXPONENTS = range(-1074, 1000)
"""Binary exponents of the grids of a sum: of the smallest float64 up to those of which no anchor overflows."""
# Errors of `load_state_dict`, of torch and of this project, at values that it does not expect.
_OTHER_STATE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)


class _SegmentEnd(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, state: TrainState) -> None:
        super().__init__()
        self.links, self.history = tuple(state.links), tuple(state.history)


def choose_segments(
    project: Project, studies: Mapping[str, VerifiedStudy], *, count: int, seed: int, world: World
) -> AuditSample:
    """Choose `count` of the segments that this machine can decide, or all if there are fewer, by a seed."""
    runs = choose_runs(project, studies, count=0, seed=seed, world=world)
    undecidable, segments = dict(runs.undecidable), dict[str, StudyRun]()
    for fingerprint, run in runs.decidable.items():
        links = project.runs[fingerprint].result.links
        folder = project.work.kept_checkpoints(fingerprint)
        if run.spec.settings.compression == "powersgd":
            undecidable[_ERROR_FEEDBACK] = undecidable.get(_ERROR_FEEDBACK, 0) + 1
        elif all(has_kept(folder, link.step) for link in links[:-1]):
            for i in range(len(links)):
                end = None if i + 1 == len(links) else i + 1
                segments[f"{fingerprint} {i:03d}"] = replace(run, first_link=i, n_links=end)
        else:
            undecidable[_NOT_KEPT] = undecidable.get(_NOT_KEPT, 0) + 1
    names = sorted(segments)
    order = np.random.default_rng(seed).permutation(len(names))[:count]
    return AuditSample(decidable=segments, undecidable=undecidable, chosen=[segments[names[i]] for i in order])


def segment_retrainer(project: Project, world: World, log: RunLog) -> Retrain:
    """Return the function that trains a segment again; what is before it is as recorded. `log` shows the training."""
    train = retrainer(project, world, log)

    def retrain(segment: StudyRun) -> RunResult:
        recorded = project.runs[segment.fingerprint].result
        checkpointer = _SegmentCheckpointer(segment, recorded, project, world)
        try:
            return train(segment, checkpointer)
        except _SegmentEnd as end:
            return replace(recorded, links=end.links, history=end.history)

    return retrain


class _SegmentCheckpointer(Checkpointer):
    """Starts a run from a kept checkpoint, saves nothing, and ends it at the segment's last link."""

    def __init__(self, segment: StudyRun, recorded: RunResult, project: Project, world: World) -> None:
        self._folder = project.work.kept_checkpoints(segment.fingerprint)
        self._segment, self._recorded = segment, recorded
        super().__init__(kept_checkpoint(self._folder, 0), stop_and_save_flags(), world=world, steps=1)

    def resume(self, state: TrainState, log: RunLog) -> None:  # noqa: ARG002
        """Load the checkpoint at the start of the segment into `state`, and compare it with its recorded link.

        Raises:
            InputError: the checkpoint is damaged, or is not the state of which the record has the hash.
        """
        if not self._segment.first_link:
            return
        links = list(self._recorded.links[: self._segment.first_link])
        step, spec = links[-1].step, self._segment.spec
        saved = load_kept(self._folder, step)
        options = _options(state.optimizer)
        try:
            state.load_state_dict(saved, self._world)
            _restore_what_no_link_hashes(state, options, spec.settings)
        except _OTHER_STATE as error:
            raise InputError(
                f"{self._folder}: the checkpoint of step {step} holds no state of this run ({type(error).__name__})"
            ) from None
        # Links and history are taken from the record: a checkpoint proves nothing but its state.
        state.links = links[:-1]
        state.history = [record for record in self._recorded.history if record.step <= step]
        stream = SampleStream(self._segment.rows.mask, spec.settings.seed)
        HashChain(state, stream, spec.settings.batch_sizes, self._world).add()
        state.wait_for_links()
        if state.step != step or state.links[-1].sha256 != links[-1].sha256:
            raise InputError(f"{self._folder}: the checkpoint of step {step} is not the state of the recorded link")
        state.links = links

    def maybe_save(self, state: TrainState) -> None:
        """End the segment after its last step; saves nothing.

        Raises:
            _SegmentEnd: with links and curve so far.
        """
        n_links = self._segment.n_links
        if n_links is not None and state.step >= self._recorded.links[n_links - 1].step:
            state.wait_for_links()
            raise _SegmentEnd(state)


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return a copy of the options of each group of parameters, such as weight decay and momentum."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _restore_what_no_link_hashes(
    state: TrainState, options: Sequence[Mapping[str, Any]], settings: TrainSettings
) -> None:
    """Replace what a checkpoint says of the optimizer's options and of the range of exact sums by the settings.

    Args:
        options: of a fresh optimizer.

    Raises:
        ValueError: the grids of exact sums are none that a step finds.
    """
    for group, own in zip(state.optimizer.param_groups, options, strict=True):
        parameters = group["params"]
        group.clear()
        group.update(own, params=parameters)
    if state.grids is not None:
        # The bits of the sum decide to what gradients are rounded, and may round all of them to zero. A step replaces
        # exponents that do not fit its gradients.
        exponents = tuple(state.grids.exponents)
        if not all(type(exponent) is int and exponent in _EXPONENTS for exponent in exponents):
            raise ValueError("exponents that no gradient has")
        state.grids = Grids(exponents, max(1, math.ceil(math.log2(settings.simulated_workers))))
