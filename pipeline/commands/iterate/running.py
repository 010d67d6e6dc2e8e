"""Run the rounds: their folders and extractors, their stages in child processes, and the files of results.

Folders are begun, resumed or restarted. The results are statistics of the rounds, and overrides.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML

from pipeline.artifacts.files import open_array, read_json, write_array, write_bytes, write_json
from pipeline.artifacts.metrics import read_dynamics, write_dynamics
from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.artifacts.resources import read_resources
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.iterate.rounds import (
    STAGES,
    FirstRound,
    RoundResult,
    compare,
    has_converged,
    link,
    read_corrected_labels,
    read_round,
    write_kept_images,
)
from pipeline.config.extractors import replicate_number
from pipeline.config.finetune import FinetuneConfig
from pipeline.config.yaml_reading import parse_yaml, read_yaml_text
from pipeline.datasets.splits import assign_folds
from pipeline.errors import Terminated
from pipeline.paths import DataPaths, WorkPaths
from pipeline.processes import set_parent_death_signal, signal_handler
from pipeline.run_log import RunLog


class StageFailedError(Exception):
    """A stage failed and has printed why.

    Attributes:
        code: exit code of the stage, or 128 + the signal that ended it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class StageProcesses:
    """Run stages one at a time in child processes, which end when this process does.

    Args:
        name: DVC item of every stage; None for stages without one.
        item: what it is, `network` or `study`.
    """

    def __init__(self, name: str | None, *, item: str = "network") -> None:
        self._item = {} if name is None else {f"--{item}": name}
        self._suffix = "" if name is None else f"@{name}"
        self._starting = False
        self._running: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Forward SIGTERM and SIGINT to the running stage, if any, and then leave the block.

        Raises:
            Terminated: after SIGTERM, unless the stage reported it.
            KeyboardInterrupt: likewise after SIGINT.
        """
        with signal_handler(self._forward):
            yield

    def run(self, stage: str, params: Path, data: DataPaths, work: WorkPaths) -> None:
        """Run a stage to its end. It inherits standard output and standard error.

        Raises:
            StageFailedError: the exit code is not 0. The stage has printed why.
        """
        options = {**self._item, "--params": params, "--data": data.root, "--work": work.root}
        command = [sys.executable, "-m", f"pipeline.stages.{stage}"]
        command += [str(part) for pair in options.items() for part in pair]
        self._starting = True
        # A new session: Ctrl-C in a terminal reaches only this process, which forwards it once.
        self._running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(set_parent_death_signal, signal.SIGKILL),
        )
        self._starting = False
        if self._signal is not None:
            self._running.send_signal(self._signal)
        code = self._running.wait()
        self._running = None
        # An interrupted import may raise another error, after which Python exits with 1.
        if self._signal is not None and code <= 1:
            self._stop(f"stopped in {stage}" if code else f"stopped after {stage}")
        if code < 0:
            name = signal.Signals(-code).name
            print(
                f"error: {stage}{self._suffix}: ended by {name}, as when memory runs out; free memory and run "
                "the same command again to resume",
                file=sys.stderr,
            )
            code = 128 - code
        if code:
            raise StageFailedError(code)

    def _forward(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        if self._running is not None:
            self._running.send_signal(number)
        elif not self._starting:
            self._stop("stopped between two stages")

    def _stop(self, message: str) -> None:
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(message)


def decisions(first: FirstRound, results: Sequence[RoundResult], *, n_planted: int | None = None) -> list[Override]:
    """Return the user's overrides, then the differences of the last round from round 0 in image order.

    The added overrides have no timestamp, so that equal results are equal bytes.

    Args:
        n_planted: number of training labels that were changed on purpose. The notes state it.
    """
    last, note = results[-1].keep, f"recursive filter, round {len(results) - 1}"
    if n_planted is not None:
        note = f"{note}; {planted_note(n_planted)}"
    added = [
        Override(
            path=first.paths[row],
            sha256=first.sha256[row],
            decision="keep" if last[row] else "drop",
            note=note,
            timestamp="",
            line=0,
        )
        for row in np.flatnonzero(last != first.result.keep).tolist()
    ]
    manual = {override.path for override in first.overrides}
    assert not manual.intersection(override.path for override in added), "a round overruled a manual override"
    return [*first.overrides, *added]


def write_results(
    data: DataPaths, network: str, first: FirstRound, results: Sequence[RoundResult], min_jaccard: float
) -> None:
    """Write data/recursive/<network>/: rounds.json and overrides.csv."""
    overrides = decisions(first, results, n_planted=count_planted(data))
    write_overrides(data.recursive_overrides(network), overrides)
    write_json(
        data.recursive_rounds(network),
        {
            "network": network,
            "settle_at": min_jaccard,
            "settled": has_converged(results, min_jaccard),
            "overrides_added": len(overrides) - len(first.overrides),
            "rounds": compare(results),
        },
    )


def install_extractor(
    kept: DataPaths, all_images: DataPaths, network: str, keep: NDArray[np.bool_], config: FinetuneConfig
) -> None:
    """Install the extractor of the kept images as one of all training images, where `extract` reads it.

    Confidence in training is that of the labels trained on. Relabeled images have none: scorers read that of the label
    as given. Without folds, files are linked. With folds, dropped images get a fold too. No network has seen them,
    so they take the fold that a split of all images would give them.

    Args:
        keep: (N,), which training images of `all_images` are those of `kept`.
    """
    link(all_images.finetune_metrics(network), kept.finetune_metrics(network))
    labels = read_parquet(all_images.manifest("train"), ["label"])["label"].to_numpy()
    trained_labels = read_parquet(kept.manifest("train"), ["label"])["label"].to_numpy()
    confidence = np.full(len(keep), np.nan, dtype=np.float32)
    confidence[keep] = open_array(kept.training_confidence(network), dtype=np.float32, ndim=1, rows=int(keep.sum()))
    relabeled = np.flatnonzero(keep)[trained_labels != labels[keep]]
    confidence[relabeled] = np.nan
    write_array(all_images.training_confidence(network), confidence)
    recorded = read_dynamics(kept.training_dynamics(network), int(keep.sum()))
    dynamics = np.full((2, len(keep)), np.nan, dtype=np.float32)
    if recorded is not None:
        dynamics[:, keep] = recorded
        dynamics[:, relabeled] = np.nan
    write_dynamics(all_images.training_dynamics(network), *dynamics)
    if config.folds == 1:
        link(all_images.extractor(network), kept.extractor(network))
        return
    # Imported here: torch takes seconds, and otherwise only the stage processes need it.
    from pipeline.training.weights import load_fold_networks, write_with_folds

    images = read_parquet(all_images.manifest("train"), ["path", "label", "sha256"])
    paths, contents = (images[name].to_pylist() for name in ("path", "sha256"))
    seed = config.seed + replicate_number(network)
    folds = assign_folds(paths, images["label"].to_numpy(), config.folds, seed=seed, contents=contents)
    trained = load_fold_networks(kept.extractor(network)).folds
    assert trained is not None, "finetune made folds"
    folds[keep] = trained
    write_with_folds(kept.extractor(network), all_images.extractor(network), folds)


@dataclass(frozen=True, kw_only=True)
class RoundsDir:
    """Folder of the rounds of one network: their inputs, and a subfolder per round.

    Attributes:
        data: data folder of round 0.
        work: work folder of the command. Each round has a work folder below it.
        network: DVC item of the extractor.
        finetune: the section `finetune`, which trains the extractors; its folds may differ from the file's.
    """

    data: DataPaths
    work: WorkPaths
    network: str
    finetune: FinetuneConfig

    def begin(self, params: Path, inputs: Mapping[str, Any], log: RunLog) -> Path:
        """Resume the rounds that started with the same `inputs`, or remove them and their results.

        Args:
            params: the parameter file.
            inputs: all inputs of the rounds, as `round_inputs` returns them.

        Returns:
            Path of a copy of `params` with the folds of `finetune`. The overrides are copied as well: rounds take
            long, and edits must not change half of one.
        """
        folder = self.work.iteration(self.network)
        record = folder / "inputs.json"
        recorded = read_json(record) if record.exists() else None
        if recorded is not None and (changed := changed_inputs(recorded, inputs)):
            log.info(f"starting over: {changed} changed since the first of these rounds")
        if recorded is None or changed:
            for path in (self.data.recursive_rounds(self.network), self.data.recursive_overrides(self.network)):
                path.unlink(missing_ok=True)
            # First: a kill must not leave some of the rounds under the inputs of all.
            record.unlink(missing_ok=True)
            if folder.exists():
                shutil.rmtree(folder)
            write_json(record, inputs)
        copy = folder / "params.yaml"
        write_bytes(copy, self._with_folds(params))
        write_bytes(self._overrides, self.data.overrides.read_bytes())
        return copy

    def _with_folds(self, params: Path) -> bytes:
        tree = parse_yaml(read_yaml_text(params), source=str(params))
        if tree["finetune"].get("folds", 1) == self.finetune.folds:
            return params.read_bytes()
        tree["finetune"]["folds"] = self.finetune.folds
        text = BytesIO()
        YAML(typ="safe", pure=True).dump(tree, text)
        return text.getvalue()

    def run_round(
        self, number: int, keep: NDArray[np.bool_], *, params: Path, processes: StageProcesses, log: RunLog
    ) -> RoundResult:
        """Run the unfinished stages of a round.

        A stage writes its provenance last, so its presence means that the stage finished.

        Args:
            number: of the round, 1 or more.
            keep: (N,) images to train the extractor on.
            params: the copy that `begin` returned.

        Raises:
            StageFailedError: a stage failed.
        """
        kept, all_images, work = self._round_paths(number)
        self._link(kept, all_images)
        if not kept.prepare_metrics.exists():
            write_kept_images(self.data, kept, keep, read_corrected_labels(self.data, self.network))
        for stage in STAGES:
            data = kept if stage == "finetune" else all_images
            if stage == "extract":
                install_extractor(kept, all_images, self.network, keep, self.finetune)
            if not data.provenance(stage, self.network).exists():
                log.info(f"round {number}: {stage}" + (f" on {keep.sum()} images" if stage == "finetune" else ""))
                processes.run(stage, params, data, work)
        return read_round(all_images, self.network)

    def seconds(self, number: int, say: Callable[[str], object]) -> float:
        """Return the wall time (s) of a round's stages when they last ran.

        Outputs from DVC's cache count 0. `say` takes a note of each damaged record, which counts 0 too.
        """
        work = self._round_paths(number)[2] if number else self.work
        names = [f"{stage}@{self.network}" for stage in STAGES]
        records = read_resources({name: work.resources(name) for name in names}, say)
        return float(sum(record["wall_s"] for record in records.values()))

    def _round_paths(self, number: int) -> tuple[DataPaths, DataPaths, WorkPaths]:
        """Return a round's data folder of kept images, its data folder of all images, and its work folder."""
        folder = self.work.iteration(self.network) / f"round-{number}"
        return DataPaths(root=folder / "kept"), DataPaths(root=folder / "all"), WorkPaths(root=folder / "work")

    def _link(self, kept: DataPaths, all_images: DataPaths) -> None:
        """Link the inputs. Each run links again, since the project may have moved."""
        for split_file in (self.data.images("test"), self.data.manifest("test")):
            link(kept.prepare_metrics.with_name(split_file.name), split_file)
        link(all_images.prepare_metrics.parent, self.data.prepare_metrics.parent)
        link(all_images.overrides, self._overrides)

    @property
    def _overrides(self) -> Path:
        """Path of the copied overrides."""
        return self.work.iteration(self.network) / "overrides.csv"


def changed_inputs(recorded: object, inputs: Mapping[str, Any]) -> str:
    """Return the names of the inputs that differ, separated by commas, or an empty text.

    Args:
        recorded: of a JSON file; if it is no object, all inputs count as changed.
        inputs: name -> value.
    """
    if not isinstance(recorded, dict):
        return ", ".join(inputs)
    return ", ".join(name for name in {**inputs, **recorded} if inputs.get(name) != recorded.get(name))
