"""The weights that a run is judged by: averaged where it averages, with BatchNorm statistics of their own."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from pipeline import distributed
from pipeline.batching import RankBatch, SampleStream
from pipeline.training.batch_norm import recompute_statistics
from pipeline.training.compiling import eager
from pipeline.training.gradient import GlobalBatch, Objective
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState

STATISTICS_IMAGES = 2048
"""Images of the recomputed BatchNorm statistics, at most: the last layers, which have few pixels, settle with them."""
# In a shorter run a share of its images keeps the passes to 2 % of its time: a forward pass is a third of a step.
_SHARE = 1 / 16
# With fewer the accuracy of equal weights varies: docs/decisions/batch-norm.md has the figures.
_FEWEST_IMAGES = 512


def statistics_batches(trained_on: int, batch_size: int) -> int:
    """Global batches of the recomputed BatchNorm statistics, at least 1: a function of the settings alone.

    They hold a sixteenth of the images that the run has trained on, repeats counted, but between 512 and 2,048, and
    no more than that number. The last batch is a whole one.

    Args:
        trained_on: images of all steps that the run has done, repeats counted; at least one batch.
        batch_size: images of a global batch, at least 1.
    """
    n_images = min(STATISTICS_IMAGES, trained_on, max(_FEWEST_IMAGES, math.ceil(_SHARE * trained_on)))
    return math.ceil(n_images / batch_size)


class EvaluatedWeights:
    """Turns the weights of a run, at its end or as if it ended where it stands, into those to evaluate.

    Every rank must call its methods at the same step, after the first.

    Args:
        batches: how this rank computes a batch of each size.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        objective: Objective,
        stream: SampleStream,
        batches: Mapping[int, RankBatch],
    ) -> None:
        self._settings, self._state, self._objective = settings, state, objective
        self._stream, self._batches = stream, batches

    def set(self) -> None:
        """For good."""
        state, settings = self._state, self._settings
        if state.average is not None:
            averaged = dict(state.average.module.named_parameters())
            with torch.no_grad():
                for name, parameter in state.model.named_parameters():
                    parameter.copy_(averaged[name])
        # In the groups of the last step.
        size, done = settings.batch_sizes.at(state.step - 1), settings.batch_sizes.examples(state.step)
        batches = [
            GlobalBatch.of(self._stream, start=done + index * size, size=size)
            for index in range(statistics_batches(done, size))
        ]
        tree = settings.reduction == "tree"
        sum_over_ranks_ = distributed.tree_sum_ if tree else distributed.all_reduce_sum_
        with eager():
            recompute_statistics(
                state.model, self._objective, batches, self._batches[size].passes, sum_over_ranks_=sum_over_ranks_
            )  # fmt: skip

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """While active; training then goes on with the bits that it had."""
        before = {name: tensor.clone() for name, tensor in self._state.model.state_dict().items()}
        self.set()
        yield
        self._state.model.load_state_dict(before)
        self._state.model.train()
