"""Folders of the rounds, and the extractors that they hand on."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, read_json, write_array, write_bytes, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.iteration.processes import StageProcesses
from pipeline.commands.iteration.rounds import STAGES, RoundResult, link, read_verdict, write_kept_images
from pipeline.config.extractors import replicate_number
from pipeline.config.finetune import FinetuneConfig
from pipeline.datasets.splits import assign_folds
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog

# The extractor of the images kept, as one of all training images.


def install_extractor(
    kept: DataPaths, everything: DataPaths, network: str, keep: NDArray[np.bool_], config: FinetuneConfig
) -> None:
    """Put what was trained in `kept` where `extract` looks for it in `everything`.

    Without folds they are links. With folds the images that were not kept get one too: no network of any fold
    has seen them, so they take the part that they would have in a draw over all images.

    Args:
        keep: (N,), the training images of `everything` that are those of `kept`.
    """
    link(everything.finetune_metrics(network), kept.finetune_metrics(network))
    confidence = np.full(len(keep), np.nan, dtype=np.float32)
    confidence[keep] = open_array(kept.training_confidence(network), dtype=np.float32, ndim=1, rows=int(keep.sum()))
    write_array(everything.training_confidence(network), confidence)
    if config.folds == 1:
        link(everything.extractor(network), kept.extractor(network))
        return
    # Imported here: torch takes seconds, and all else that needs it is in the stages' own processes.
    from pipeline.training.weights import load_fold_networks, write_with_folds

    images = read_parquet(everything.manifest("train"), ["path", "label", "sha256"])
    paths, contents = (images[name].to_pylist() for name in ("path", "sha256"))
    seed = config.seed + replicate_number(network)
    folds = assign_folds(paths, images["label"].to_numpy(), config.folds, seed=seed, contents=contents)
    trained = load_fold_networks(kept.extractor(network)).folds
    assert trained is not None, "finetune has made folds"
    folds[keep] = trained
    write_with_folds(kept.extractor(network), everything.extractor(network), folds)


# The folder of a recursion: what it was begun with, and a folder for each round.


@dataclass(frozen=True, kw_only=True)
class RoundsDir:
    """Where the rounds of one network are run.

    Attributes:
        data: of round 0.
        work: of the command; each round has one of its own below it.
        finetune: the section by which the extractors are trained.
    """

    data: DataPaths
    work: WorkPaths
    network: str
    finetune: FinetuneConfig

    def begin(self, params: Path, inputs: Mapping[str, Any], log: RunLog) -> Path:
        """Go on with the rounds that were begun with the same `inputs`, or remove them and their results.

        Args:
            params: the parameter file.

        Returns:
            A copy of it. Rounds take long, and what people edit meanwhile must not come into half of one; the
            overrides are copied as well.
        """
        folder = self.work.recursion(self.network)
        record = folder / "inputs.json"
        known = read_json(record) if record.exists() else None
        if known is not None and (changed := changed_inputs(known, inputs)):
            log.info(f"starting anew: {changed} changed since these rounds were begun")
        if known is None or changed:
            for path in (self.data.recursive_rounds(self.network), self.data.recursive_overrides(self.network)):
                path.unlink(missing_ok=True)
            if folder.exists():
                shutil.rmtree(folder)
            write_json(record, inputs)
        copy = folder / "params.yaml"
        write_bytes(copy, params.read_bytes())
        write_bytes(self._overrides, self.data.overrides.read_bytes())
        return copy

    def run_round(
        self, number: int, keep: NDArray[np.bool_], *, params: Path, processes: StageProcesses, log: RunLog
    ) -> RoundResult:
        """Run what is not finished of a round.

        A stage writes its provenance last, so that this says that it has finished.

        Args:
            keep: (N,) images to train the extractor on.
            params: the copy that `begin` has made.

        Raises:
            StageFailedError: a stage did.
        """
        kept, everything, work = self._places(number)
        self._link(kept, everything)
        if not kept.prepare_metrics.exists():
            write_kept_images(self.data, kept, keep)
        for stage in STAGES:
            data = kept if stage == "finetune" else everything
            if stage == "extract":
                install_extractor(kept, everything, self.network, keep, self.finetune)
            if not data.provenance(stage, self.network).exists():
                log.info(f"round {number}: {stage}" + (f" on {keep.sum()} images" if stage == "finetune" else ""))
                processes.run(stage, params, data, work)
        return read_verdict(everything, self.network)

    def seconds(self, number: int) -> float:
        """Wall time of a round's stages when they last ran; what DVC took from its cache counts nothing."""
        work = self._places(number)[2] if number else self.work
        files = [work.resources(f"{stage}@{self.network}") for stage in STAGES]
        return sum(float(read_json(file)["wall_s"]) for file in files if file.exists())

    def _places(self, number: int) -> tuple[DataPaths, DataPaths, WorkPaths]:
        """Of a round: its extractor and the images that it is trained on; all images, judged by it; its work."""
        folder = self.work.recursion(self.network) / f"round-{number}"
        return DataPaths(root=folder / "kept"), DataPaths(root=folder / "all"), WorkPaths(root=folder / "work")

    def _link(self, kept: DataPaths, everything: DataPaths) -> None:
        """Anew each time, since the project may have been moved."""
        for split_file in (self.data.images("test"), self.data.manifest("test")):
            link(kept.prepare_metrics.with_name(split_file.name), split_file)
        link(everything.prepare_metrics.parent, self.data.prepare_metrics.parent)
        link(everything.overrides, self._overrides)

    @property
    def _overrides(self) -> Path:
        """The copy."""
        return self.work.recursion(self.network) / "overrides.csv"


def changed_inputs(known: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Names of what differs; empty if nothing does."""
    return ", ".join(name for name in {**inputs, **known} if inputs.get(name) != known.get(name))
