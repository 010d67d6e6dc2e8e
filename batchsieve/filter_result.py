"""What `sieve` returns: the keep mask, and the evidence for it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchsieve.suspect_table import SHOWN, NotebookOutput, SuspectTable
from pipeline.scoring.wrong_share import WrongShare

if TYPE_CHECKING:
    import pandas as pd

    from batchsieve.looking.sources import Images


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """Why samples are suspect, (N,) each.

    Attributes:
        reason: text, the evidence in words, for all samples.
        suggested_label: in the type of the labels; None if there is one class.
        suggested_probability: float32, 0 to 1, of the suggested label; None if there is one class.
    """

    reason: NDArray[np.object_]
    suggested_label: NDArray[Any] | None
    suggested_probability: NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FilterResult(SuspectTable):
    """Evidence behind a keep mask for N samples, in their order.

    Attributes:
        keep: (N,) bool, True for samples to keep.
        score: (N,) float64, 0 to 1, above 1/2 exactly for dropped samples; higher is more suspect.
        label: (N,) the labels of the input.
        scorer: name of the scorer.
        explain: computes what the mask does not need, such as nearest neighbors; called once, at the first use.
        wrong_share: estimated share of wrong labels with its interval; None unless `drop_fraction` is "estimated".
        images: of the samples, if the input was images; else None. They are not pickled.
    """

    keep: NDArray[np.bool_]
    score: NDArray[np.float64]
    label: NDArray[Any]
    scorer: str
    explain: Callable[[], Explanation]
    wrong_share: WrongShare | None = None
    images: "Images | None" = None

    def __post_init__(self) -> None:
        for array in (self.keep, self.score, self.label):
            array.flags.writeable = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays, with the explanation and without the images."""
        values = (self.keep, self.score, self.label, self.scorer, self._explanation, self.wrong_share)
        return _unpickled, values

    @cached_property
    def _explanation(self) -> Explanation:
        explanation = self.explain()
        for array in vars(explanation).values():
            if array is not None:
                array.flags.writeable = False
        return explanation

    @property
    def reason(self) -> NDArray[np.object_]:
        """(N,) str, the evidence in words, for all samples."""
        return self._explanation.reason

    @property
    def suggested_label(self) -> NDArray[Any] | None:
        """(N,) the most probable class, in the type of the labels; it may be the label.

        Where the scorer needs no class probabilities, the label of most of the ten nearest neighbors. None if there is
        one class.
        """
        return self._explanation.suggested_label

    @property
    def suggested_probability(self) -> NDArray[np.float32] | None:
        """(N,) float32, 0 to 1, of the suggested label; of a vote its share. None if there is one class."""
        return self._explanation.suggested_probability

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return label, score, keep, suggested_label, suggested_probability and reason, by sample."""
        columns = {"label": self.label, "score": self.score, "keep": self.keep}
        if self.suggested_label is not None and self.suggested_probability is not None:
            columns["suggested_label"] = self.suggested_label
            columns["suggested_probability"] = self.suggested_probability
        return {**columns, "reason": self.reason}

    def show(self, n: int = SHOWN, *, images: "Images | None" = None) -> NotebookOutput:
        """Return the `n` most suspect samples, which a notebook shows as the output of a cell.

        Each has label, suggested label, score and reason. With images it has its picture, else it is a row of a table.

        Args:
            n: at least 1.
            images: those of the N samples, as uint8 (N, H, W, 3), RGB, or N PIL images. None: those given to `sieve`.

        Raises:
            InputError: `n` is below 1, or `images` are no images or not N.
        """
        return super().show(n, images=self.images if images is None else images)

    def __repr__(self) -> str:
        return f"FilterResult({int(self.keep.sum()):,} of {len(self):,} samples kept, scorer={self.scorer!r})"


def _unpickled(
    keep: NDArray[np.bool_],
    score: NDArray[np.float64],
    label: NDArray[Any],
    scorer: str,
    explanation: Explanation,
    wrong_share: WrongShare | None,
) -> FilterResult:
    return FilterResult(
        keep=keep, score=score, label=label, scorer=scorer, explain=lambda: explanation, wrong_share=wrong_share
    )


class KeepMask(np.ndarray[tuple[int], np.dtype[np.bool_]]):
    """(N,) bool, True for samples to keep. An array, which also has the evidence of the filter in `result`.

    Setting elements changes the mask alone. What NumPy computes or copies from it has no evidence.
    """

    _result: FilterResult | None = None

    def __new__(cls, result: FilterResult) -> "KeepMask":
        """Return the mask of a result."""
        mask = result.keep.copy().view(cls)
        mask._result = result
        return mask

    @property
    def result(self) -> FilterResult:
        """Scores, reasons and suggested labels.

        Raises:
            AttributeError: this is a copy or a part of a mask.
        """
        if self._result is None:
            raise AttributeError("a copy or a part of a keep mask has no result; use the mask that sieve returned")
        return self._result

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the mask with its result, if it has one."""
        mask = np.asarray(self)
        return (np.asarray, (mask,)) if self._result is None else (_unpickled_mask, (self._result, mask))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return what NumPy has computed from a mask as a plain array or number."""
        return array[()] if return_scalar else np.asarray(array)

    def show(self, n: int = SHOWN, *, images: "Images | None" = None) -> NotebookOutput:
        """Return the `n` most suspect samples, as `FilterResult.show`."""
        return self.result.show(n, images=images)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the evidence as a data frame, as `FilterResult.to_pandas`."""
        return self.result.to_pandas()


def _unpickled_mask(result: FilterResult, values: NDArray[np.bool_]) -> KeepMask:
    mask = KeepMask(result)
    mask[:] = values
    return mask
