"""Every image counts once, and the scores are scikit-learn's."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from torch import Tensor, nn

from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import World
from pipeline.training.evaluation import evaluate, load_images, rank_rows
from tests.fixtures.training import ALONE, SIZE, TINY, bright_images

N = 37


class _Counting(nn.Module):
    """A linear classifier that remembers how many images passed, and whether in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3 * SIZE * SIZE, 4)
        self.batches: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        self.batches.append(len(images))
        logits: Tensor = self.linear(images.flatten(1))
        return logits


def _data() -> tuple[TrainingImages, NDArray[np.int64]]:
    pixels, _ = bright_images(N)
    # Labels of which the classifier, which knows nothing, gets some right; classes of unequal size.
    labels = np.random.default_rng(0).choice(4, size=N, p=[0.5, 0.3, 0.1, 0.1])
    return load_images(pixels, TINY, training=False, device=torch.device("cpu")), labels


@pytest.mark.parametrize("batch_size", [1, 7, N, 100])
def test_scores_are_scikit_learns(batch_size: int) -> None:
    images, labels = _data()
    model = _Counting()
    result = evaluate(model, images, torch.from_numpy(labels), batch_size=batch_size, world=ALONE)
    assert sum(model.batches) == N
    assert max(model.batches) == min(batch_size, N)
    with torch.inference_mode():
        logits = model(images.evaluation_batch(np.arange(N)))
    predicted = logits.argmax(1).numpy()
    assert 0 < result.top1 < 1
    assert result.correct.tolist() == (predicted == labels).tolist()
    assert result.top1 == pytest.approx(accuracy_score(labels, predicted))
    assert result.balanced_accuracy(labels) == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert result.loss == pytest.approx(log_loss(labels, logits.double().softmax(1).numpy(), labels=range(4)))


@given(n=st.integers(0, 300), count=st.integers(1, 40))
def test_ranks_share_the_rows_without_padding(n: int, count: int) -> None:
    shares = [rank_rows(n, World(rank=rank, size=count, device=ALONE.device)) for rank in range(count)]
    assert np.concatenate(shares).tolist() == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_image_that_no_rank_saw_is_a_bug() -> None:
    images, labels = _data()
    half = World(rank=0, size=2, device=ALONE.device)
    with pytest.raises(AssertionError):
        evaluate(_Counting(), images, torch.from_numpy(labels), batch_size=7, world=half)
