"""What `sieve` returns: the keep mask, and the evidence for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchsieve.notebook_output import NotebookOutput
from batchsieve.suspect_table import SHOWN, SuspectTable
from pipeline.scoring.wrong_share import WrongShare

if TYPE_CHECKING:
    import pandas as pd

    from batchsieve.looking.sources import Images


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FilterResult(SuspectTable):
    """Evidence behind a keep mask for N samples, in their order.

    Attributes:
        keep: (N,) bool, True for samples to keep.
        score: (N,) float64, 0 to 1, above 1/2 exactly for dropped samples; higher is more suspect.
        reason: (N,) str, the evidence in words, for all samples.
        label: (N,) the labels of the input.
        suggested_label: (N,) the most probable class, in the type of the labels; it may be the label. Where the scorer
            needs no class probabilities, the label of most of the ten nearest neighbors. None if there is one class.
        suggested_probability: (N,) float32, 0 to 1, of the suggested label; of a vote its share. None if there is one
            class.
        scorer: name of the scorer.
        wrong_share: estimated share of wrong labels with its interval; None unless `drop_fraction` is "estimated".
        images: of the samples, if the input was images; else None.
    """

    keep: NDArray[np.bool_]
    score: NDArray[np.float64]
    reason: NDArray[np.object_]
    label: NDArray[Any]
    suggested_label: NDArray[Any] | None
    suggested_probability: NDArray[np.float32] | None
    scorer: str
    wrong_share: WrongShare | None = None
    images: "Images | None" = None

    def __post_init__(self) -> None:
        for array in (self.score, *self.columns().values()):
            array.flags.writeable = False

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


class KeepMask(np.ndarray[tuple[int], np.dtype[np.bool_]]):
    """(N,) bool, True for samples to keep. An array, which also has the evidence.

    What NumPy computes or copies from it has none, and its `result` raises AttributeError.

    Attributes:
        result: scores, reasons and suggested labels.
    """

    result: FilterResult

    def __new__(cls, result: FilterResult) -> "KeepMask":
        """Return the mask of a result."""
        mask = result.keep.copy().view(cls)
        mask.result = result
        return mask

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return what NumPy has computed from a mask as a plain array or number."""
        return array[()] if return_scalar else np.asarray(array)

    def show(self, n: int = SHOWN, *, images: "Images | None" = None) -> NotebookOutput:
        """Return the `n` most suspect samples, as `FilterResult.show`."""
        return self.result.show(n, images=images)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the evidence as a data frame, as `FilterResult.to_pandas`."""
        return self.result.to_pandas()
