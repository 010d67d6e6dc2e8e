"""A tiny prepared data set, its parameters, and training stages in processes of their own."""

import contextlib
import fnmatch
import importlib
import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
import torchvision
from made_up import NETWORK, ROOT, write_manifest, write_params
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import write_csv
from pipeline.datasets.resident import ResidentImages
from pipeline.distributed import Ranks
from pipeline.models import build
from pipeline.models.network import Network
from pipeline.models.resnet import ResNet
from pipeline.paths import DataPaths
from pipeline.training.gradient import Objective
from pipeline.training.settings import ImageFormat, TrainSettings

SIZE = 16
NAMES = ("ash", "birch", "cedar", "dogwood")
TIMEOUT_S = 120

ALONE = Ranks(rank=0, count=1, device=torch.device("cpu"))
"""This process, without others."""

TINY = TrainSettings(
    network=NETWORK,
    stem="imagenet",
    n_classes=len(NAMES),
    format=ImageFormat(image_size=SIZE, crop_size=SIZE, mean=(0.44,) * 3, std=(0.27,) * 3),
    crop_padding=1,
    flip=True,
    batch_size=20,
    simulated_workers=2,
    steps=2,
    optimizer="sgd",
    optimizer_options={"momentum": 0.9, "nesterov": True},
    learning_rate=0.05,
    weight_decay=5e-4,
    decay_norm_and_bias=False,
    schedule="cosine",
    schedule_options={},
    warmup_steps=0,
    label_smoothing=0.1,
    seed=3,
)
"""Two steps of ResNet-18 on `bright_images`."""

TINY_STUDY: Mapping[str, Any] = {
    "filter_network": NETWORK,
    "models": [NETWORK],
    "arms": ["full", "filtered", "random"],
    "batch_sizes": [20],
    "learning_rates": [0.05],
    "weight_decays": [5e-4],
    "seeds": [0, 1],
    "budget": {"steps": 2},
}
"""Six cells of two steps each."""


def bright_images(n: int, size: int = SIZE, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 (n, size, size, 3) whose class, 0 to 3, shows in their brightness; labels in turn."""
    labels = np.arange(n) % len(NAMES)
    noise = np.random.default_rng(seed).integers(0, 48, (n, size, size, 3))
    return (noise + 60 * labels[:, None, None, None]).astype(np.uint8), labels


def as_resnet(model: nn.Module) -> ResNet:
    """What a registry's network is, to read the layers of its backbone."""
    assert isinstance(model, ResNet), type(model)
    return model


def build_resnet(
    network: str = NETWORK,
    n_classes: int = len(NAMES),
    *,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    seed: int = 0,
) -> ResNet:
    return as_resnet(build(network, n_classes, stem=stem, seed=seed))


def build_float64(network: str, n_classes: int, **options: Any) -> Network:
    """`pipeline.models.build` in float64, which takes images in float32; for `pipeline.training.state.build`."""
    model = build(network, n_classes, **options).double()
    model.register_forward_pre_hook(lambda _, images: images[0].double())
    return model


class _RandomImages:
    """`ResidentImages` that are random numbers, each epoch's scaled anew."""

    def __init__(self, n: int, side: int, dtype: torch.dtype) -> None:
        self._pixels = torch.from_numpy(np.random.default_rng(0).normal(size=(n, 3, side, side))).to(dtype)

    def training_batch(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        scale = torch.from_numpy(1.0 + epochs)[:, None, None, None]
        return self._pixels[torch.from_numpy(ids)] * scale.to(self._pixels.dtype)


def random_objective(n: int, *, side: int = 8, dtype: torch.dtype = torch.float64, **options: Any) -> Objective:
    """Random images of `NAMES`' classes: in float64, sums in different orders differ by 1e-15 alone.

    Args:
        options: of `Objective`.
    """
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, len(NAMES), n))
    return Objective(images=cast("ResidentImages", _RandomImages(n, side, dtype)), labels=labels, **options)


def gradient_of(model: nn.Module) -> Tensor:
    """All gradients in one vector, copied."""
    return torch.cat([cast("Tensor", parameter.grad).detach().flatten() for parameter in model.parameters()])


def parameters_of(model: nn.Module) -> Tensor:
    """All parameters in one vector, copied."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def distance(vector: Tensor, expected: Tensor) -> float:
    """Relative L2."""
    return float((vector - expected).norm() / expected.norm())


def write_prepared(data: DataPaths, *, n_train: int = 60, n_test: int = 22) -> None:
    """data/prepare, and a data/filter that drops every tenth training image."""
    for split, n, seed in (("train", n_train, 0), ("test", n_test, 1)):
        images, labels = bright_images(n, seed=seed)
        write_array(data.images(split), images)
        write_manifest(data, split, labels, names=NAMES)
    write_json(
        data.prepare_metrics,
        {"class_names": NAMES, "image_size": SIZE, "mean": [0.44] * 3, "std": [0.27] * 3, "n_train": n_train},
    )
    write_kept(data, np.arange(n_train) % 10 != 0)


def write_kept(data: DataPaths, keep: NDArray[np.bool_]) -> None:
    """data/filter/<network>/kept.csv of the images in `keep`, as `filter` would write it."""
    ids = np.flatnonzero(keep)
    names = [NAMES[row % len(NAMES)] for row in ids]
    paths = [f"train/{name}/{row:05}.png" for row, name in zip(ids, names, strict=True)]
    write_csv(data.kept(NETWORK), pa.table({"sample_id": ids, "path": paths, "label_name": names}))


def write_project(folder: Path, *, study: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]) -> DataPaths:
    """Parameters, images and kept.csv in `folder`: all that `finetune` and `train` read.

    Args:
        study: keys of the study `tiny` that differ from `TINY_STUDY`.
        sections: keys of other sections that differ from those here.
    """
    cold = {"schedule": {"name": "cosine"}}  # two steps leave no room for a warm-up
    short = {**cold, "batch_size": 20, "budget": {"steps": 2}, "threads_per_worker": 1}
    common = {**cold, "threads_per_worker": 1, "augmentation": {"crop_padding": 1, "flip": True}}
    changed = {
        **sections,
        "finetune": {**short, **sections.get("finetune", {})},
        "train": {**common, **sections.get("train", {})},
        "studies": {"digits": None, "tiny": {**TINY_STUDY, **(study or {})}},
    }
    write_params(folder, **changed)
    data = DataPaths(root=folder / "data")
    write_prepared(data)
    return data


def write_imagenet_weights(folder: Path) -> Path:
    """A made-up ResNet-18 for 1000 classes, named and made as torchvision's files are.

    Its name carries its hash; its tensors are parameters, without BatchNorm's counts of batches.
    """
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = torchvision.models.resnet18(weights=None)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = OrderedDict((name, t) for name, t in tensors.items() if not name.endswith("num_batches_tracked"))
    folder.mkdir(parents=True)
    unnamed = folder / "resnet18.pth"
    torch.save(state, unnamed)
    return unnamed.rename(folder / f"resnet18-{sha256_of_file(unnamed)[:8]}.pth")


def runs_of(data: DataPaths) -> list[dict[str, Any]]:
    """The rows of the study `tiny`."""
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(data.runs("tiny")).to_pylist()
    return rows


def arguments(stage: str, folder: Path, item: str | None = None) -> list[str]:
    """The stage's command line for the project in `folder`; `item` is another study or network."""
    named = ["--study", item or "tiny"] if stage == "train" else ["--network", item or NETWORK]
    places = {"--params": folder / "params.yaml", "--data": folder / "data", "--work": folder / "work"}
    return [*named, *(str(part) for pair in places.items() for part in pair)]


def command(stage: str, folder: Path, *, ranks: int = 1) -> list[str]:
    """As DVC would call the stage; with several ranks, as a person with torchrun would."""
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*start, "-m", f"pipeline.stages.{stage}", *arguments(stage, folder)]


def stage(name: str, folder: Path, item: str | None = None) -> int:
    """Run a stage in this process, as its command line would; returns the exit code."""
    argv, threads = sys.argv, torch.get_num_threads()
    sys.argv = [name, *arguments(name, folder, item)]
    try:
        importlib.import_module(f"pipeline.stages.{name}").main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = argv
        torch.set_num_threads(threads)
    return 0


def environment() -> dict[str, str]:
    """One thread a process, no GPU, and no DVC around it."""
    inherited = {key: value for key, value in os.environ.items() if key != "DVC_ROOT"}
    return {**inherited, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def files_below(folder: Path, pattern: str = "*") -> list[Path]:
    """Files by name; `rglob` fails where a process removes a folder meanwhile."""
    return [Path(parent, name) for parent, _, names in os.walk(folder) for name in fnmatch.filter(names, pattern)]


def run(
    args: Sequence[str], *, timeout: float = TIMEOUT_S, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end, with `environ` added to the environment; all of it is killed when the time is up."""
    process = start(args, environ=environ)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        kill(process)
    return subprocess.CompletedProcess(list(args), process.returncode, out, err)


def start(
    args: Sequence[str], *, environ: Mapping[str, str] | None = None, output: Path | None = None
) -> "subprocess.Popen[str]":
    """Start in a session of its own; what it prints is kept for `communicate`, or added to the file `output`."""
    with output.open("a") if output else contextlib.nullcontext(subprocess.PIPE) as to:
        return subprocess.Popen(
            args,
            cwd=ROOT,
            env={**environment(), **(environ or {})},
            stdout=to,
            stderr=to,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )


def _heed_interrupts() -> None:
    """A shell's background job, and all that it starts, would ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def descendants(pid: int) -> set[int]:
    """Processes that `pid` started, and what they started; torchrun's are in groups of their own."""
    try:
        children = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()
    return children.union(*(descendants(child) for child in children))


def alive(pids: set[int]) -> set[int]:
    """Of these processes, those that have not ended."""
    living = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                living.add(pid)
    return living


def kill(process: "subprocess.Popen[str]", *others: int) -> None:
    """End a process that `start` started, what it started, and `others`; whatever they do."""
    mine = (process.pid, *descendants(process.pid)) if process.poll() is None else ()
    for pid in (*mine, *others):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)


def wait_until(
    condition: Callable[[], object], process: "subprocess.Popen[str]", *, timeout: float = TIMEOUT_S
) -> None:
    """Until the condition holds; fails where the process ends before, or the time is up."""
    end = time.monotonic() + timeout
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
