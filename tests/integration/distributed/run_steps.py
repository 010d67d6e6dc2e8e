"""Run one rank of tiny runs and save the result of each; tests start it with torchrun or alone.

Command line: the file to save to, then the first words of the names of the cases to run, such as "ddp" or "ddp
small_cnn". Or, instead of the words,
`--part NAME CHECKPOINTS STEP`: resume one case from its checkpoints, and stop after a step or at its end.
"""

import hashlib
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from pipeline import distributed, models
from pipeline.batching import BatchSlice, GlobalBatch
from pipeline.distributed import CommConfig, World
from pipeline.durations import BatchStage
from pipeline.errors import InputError, Terminated
from pipeline.models.network import Network
from pipeline.run_log import RunLog
from pipeline.training import eval_weights, hash_chain, state
from pipeline.training.checkpointing import Checkpointer, Checkpoints, stop_and_save_flags
from pipeline.training.evaluation import Evaluation, evaluate, load_images
from pipeline.training.gradients import TrainLoss
from pipeline.training.loop import TrainData, TrainedRun, train
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import ImageFormat, TrainSettings
from pipeline.training.state import TrainState
from tests.fixtures.training import TINY, bright_images, build_float64
from tests.integration.distributed.mutants import MUTANTS

RESNET = replace(
    TINY,
    stem="imagenet",
    format=ImageFormat(image_size=16, crop_size=16, mean=(0.5,) * 3, std=(0.25,) * 3),
    crop_padding=2,
    batch_size=66,  # over 4 or 8 simulated workers: shares of 16 and 17, or 8 and 9
    simulated_workers=4,
    steps=1,
    learning_rate=0.1,
)
PLAIN = replace(RESNET, network="small_cnn", format=replace(RESNET.format, image_size=8, crop_size=8))
"""Settings of a network without BatchNorm and with dropout."""
_LAMB: dict[str, Any] = {
    "optimizer": "lamb",
    "optimizer_options": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6},
    "learning_rate": 0.01,
}
_MUON: dict[str, Any] = {
    "optimizer": "muon",
    "optimizer_options": {"momentum": 0.95, "nesterov": True},
    "learning_rate": 0.02,
}
_SMOOTH: dict[str, Any] = {"clip_norm": 0.5, "ema_decay": 0.9}
SEVERAL = replace(PLAIN, steps=6, warmup_steps=2, learning_rate=0.05, **_SMOOTH)
GROWING = replace(SEVERAL, batch_stages=(BatchStage(batch_size=18, until_step=3),), batch_lr_scaling="linear")
"""Three steps of 18 images and three of 66; interruptions come during the first three."""
_UNEVEN_AT_MOST = 25
"""Images per forward pass of 66 in eighths: 24, 25 and 17 on one rank, 24 and 9 on each of two ranks."""


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """One run.

    Attributes:
        dtype: of the weights and of what is computed from them.
        interrupted: by SIGTERM after a step or two, and resumed.
        mixed: the last rank has another version of torch.
        spike: losses of the simulated workers with one of `_SPIKES` are 2**40 times as large.
        mutant: the mistake that is made, of `MUTANTS`; None: none.
    """

    settings: TrainSettings
    micro_batch: int | Literal["auto"] = "auto"
    comm: CommConfig | None = None
    dtype: torch.dtype = torch.float32
    interrupted: bool = False
    mixed: bool = False
    spike: bool = False
    mutant: str | None = None


def _ddp_cases() -> Iterator[tuple[str, StepCase]]:
    """In float64, where nine decimal digits separate sums in another order from mistakes; two in float32, too."""
    for name, case in _float64_cases():
        yield f"ddp {name}", replace(case, dtype=torch.float64)
    yield "ddp resnet18 X=4 float32", StepCase(settings=RESNET)
    yield "ddp small_cnn X=4 float32", StepCase(settings=PLAIN)


def _float64_cases() -> Iterator[tuple[str, StepCase]]:
    for workers in (4, 8):
        yield f"resnet18 X={workers}", StepCase(settings=replace(RESNET, simulated_workers=workers))
        yield f"small_cnn X={workers}", StepCase(settings=replace(PLAIN, simulated_workers=workers))
    yield "resnet18 bn_group", StepCase(settings=replace(RESNET, bn_group=4), micro_batch=10)
    yield "resnet18 clipped", StepCase(settings=replace(RESNET, **_SMOOTH), micro_batch=18)
    yield "small_cnn several", StepCase(settings=SEVERAL)
    yield "small_cnn micro-batch", StepCase(settings=SEVERAL, micro_batch=18)
    yield "small_cnn interrupted", StepCase(settings=SEVERAL, interrupted=True)
    yield "small_cnn growing", StepCase(settings=GROWING)
    yield "small_cnn growing micro-batch", StepCase(settings=GROWING, micro_batch=18)
    yield "small_cnn growing interrupted", StepCase(settings=GROWING, interrupted=True)
    uneven = replace(PLAIN, simulated_workers=8, steps=6, warmup_steps=2, noise_scale_steps=4)
    yield "small_cnn uneven", StepCase(settings=uneven, micro_batch=_UNEVEN_AT_MOST)
    clipped = replace(uneven, clip_norm=0.1)
    yield "small_cnn uneven clipped", StepCase(settings=clipped, micro_batch=_UNEVEN_AT_MOST)


def _exact_cases() -> Iterator[tuple[str, StepCase]]:
    """Of 12 simulated workers and 53 images, which no number of processes above one shares evenly."""
    exact: dict[str, Any] = {"reduction": "exact", "simulated_workers": 12, "batch_size": 53}
    small = replace(SEVERAL, **exact, noise_scale_steps=2, accuracy_steps=2)
    resnet = replace(RESNET, steps=2, **exact)
    yield "resnets resnet18 sgd", StepCase(settings=resnet)
    yield "resnets resnet18 lamb", StepCase(settings=replace(resnet, **_SMOOTH, **_LAMB))
    yield "resnets resnet18 muon bf16", StepCase(settings=replace(resnet, **_SMOOTH, **_MUON, precision="bf16"))
    yield "exact small_cnn sgd", StepCase(settings=small)
    yield "exact small_cnn lamb", StepCase(settings=replace(small, **_LAMB))
    yield "exact small_cnn muon bf16", StepCase(settings=replace(small, **_MUON, precision="bf16"))
    yield "exact small_cnn small buckets", StepCase(settings=small, comm=CommConfig(bucket_mib=0.01))
    yield "exact small_cnn by node", StepCase(settings=small, comm=CommConfig(hierarchical=True))
    yield "exact small_cnn one message", StepCase(settings=small, comm=CommConfig(overlap=False))
    yield "exact small_cnn interrupted", StepCase(settings=small, interrupted=True)
    yield "exact small_cnn growing", StepCase(settings=replace(GROWING, **exact))
    yield "exact small_cnn spike", StepCase(settings=small, spike=True)
    yield "exact small_cnn mixed", StepCase(settings=small, mixed=True)


def _local_cases() -> Iterator[tuple[str, StepCase]]:
    plain = replace(SEVERAL, ema_decay=None, simulated_workers=2)
    local = replace(plain, local_from_step=2, local_period=2)
    yield "local plain", StepCase(settings=plain, dtype=torch.float64)
    yield "local two", StepCase(settings=local, dtype=torch.float64)
    yield "local interrupted", StepCase(settings=local, dtype=torch.float64, interrupted=True)


SOUND = dict((*_ddp_cases(), *_exact_cases(), *_local_cases()))
MUTATED = {
    "mean of means": "ddp small_cnn uneven",
    "mean over ranks": "ddp small_cnn uneven",
    "missing rank": "ddp small_cnn uneven",
    "merged BatchNorm groups": "ddp resnet18 X=4",
    "stale BatchNorm statistics": "ddp resnet18 X=4",
    "BatchNorm statistics of one rank": "ddp resnet18 X=4",
    "clipping per micro-batch": "ddp small_cnn uneven clipped",
    "schedule per micro-step": "ddp small_cnn uneven",
}
"""Mutant -> the case that detects it."""
EXACT_MUTANT = "sum in float32"
CASES = {
    **SOUND,
    **{f"mutant {mutant}": replace(SOUND[case], mutant=mutant) for mutant, case in MUTATED.items()},
    "exact mutant": replace(SOUND["exact small_cnn sgd"], mutant=EXACT_MUTANT),
}


_SPIKES = (7, 11, 13)
_summed_loss = TrainLoss.summed_loss


def _spiked_loss(train_loss: TrainLoss, model: nn.Module, batch: GlobalBatch, part: BatchSlice) -> Tensor:
    """Return a loss whose gradient is beyond the grids of earlier steps, on the rank of the image alone."""
    loss = _summed_loss(train_loss, model, batch, part)
    return loss * 2.0**40 if np.isin(_SPIKES, batch.sample_ids[part.rows]).any() else loss


@contextmanager
def _patched(case: StepCase, world: World) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(eval_weights, "STATISTICS_IMAGES", 66))
        stack.enter_context(patch.object(hash_chain, "LINK_EXAMPLES", 50))
        if case.mixed and world.rank == world.size - 1:
            stack.enter_context(patch.object(torch, "__version__", "1.0"))
        if case.spike:
            stack.enter_context(patch.object(TrainLoss, "summed_loss", _spiked_loss))
        if case.dtype == torch.float64:
            stack.enter_context(patch.object(state, "build_network", build_float64))
        if case.mutant is not None:
            stack.enter_context(MUTANTS[case.mutant](case.settings))
        yield


def _train(case: StepCase, world: World, checkpointer: Checkpointer | None = None) -> TrainedRun:
    """The tenth of the images that is not trained on has labels out of range."""
    images, labels = bright_images(150, case.settings.format.image_size)
    members = np.arange(150) % 10 != 0
    return train(
        case.settings,
        TrainData(
            load_images(images, case.settings, training=True, device=world.device),
            torch.from_numpy(np.where(members, labels, -1)),
            members,
        ),
        world=world,
        log=RunLog.silent(),
        options=RunOptions(micro_batch=case.micro_batch, comm=case.comm or CommConfig(), checkpointer=checkpointer),
        eval_fn=lambda model: _evaluate(case, model, world),
        track_confidence=True,
    )


def _train_with_a_break(case: StepCase, world: World, folder: Path) -> TrainedRun:
    flag_sync = stop_and_save_flags()
    ended = Checkpointer(Checkpoints(folder), flag_sync, world=world, steps=1000)
    try:
        with ended.stop_at_signals():
            signal.raise_signal(signal.SIGTERM)
            _train(case, world, ended)
    except Terminated:
        pass
    else:
        raise AssertionError("was not ended")
    distributed.barrier()
    assert world.size == 1 or not world.is_main or len(list(folder.iterdir())) == 1
    return _train(case, world, Checkpointer(Checkpoints(folder), flag_sync, world=world, steps=1000))


class _StopAfter(Checkpointer):
    """Requests a stop after a step, as SIGTERM would."""

    def __init__(self, folder: Path, world: World, step: int) -> None:
        super().__init__(Checkpoints(folder), stop_and_save_flags(), world=world, steps=1)
        self._stop_after = step

    def maybe_save(self, state: TrainState) -> None:
        """Save after each step; stop after the last of this part."""
        super().maybe_save(state)
        if state.step == self._stop_after:
            # All ranks stop at the same step, and it is saved.
            distributed.barrier()
            raise Terminated("this part is done")


def run(case: StepCase, world: World) -> dict[str, Any]:
    """Train and evaluate; return the results, or the error."""
    with _patched(case, world), TemporaryDirectory() as folder:
        try:
            trained = _train_with_a_break(case, world, Path(folder)) if case.interrupted else _train(case, world)
        except InputError as error:
            return {"refused": str(error)}
    return _results(case, trained, world)


def run_part(case: StepCase, world: World, checkpoints: Path, stop: int) -> dict[str, Any]:
    """Resume a run and stop after a step; return the results if it ends before, else the step."""
    with _patched(case, world):
        try:
            trained = _train(case, world, _StopAfter(checkpoints, world, stop))
        except Terminated:
            return {"stopped": stop}
    return _results(case, trained, world)


def _evaluate(case: StepCase, model: Network, world: World) -> Evaluation:
    test_images, test_labels = bright_images(53, case.settings.format.image_size, seed=1)
    test = load_images(test_images, case.settings, training=False, device=world.device)
    return evaluate(model, test, torch.from_numpy(test_labels), batch_size=7, world=world)


def _results(case: StepCase, trained: TrainedRun, world: World) -> dict[str, Any]:
    result, dynamics = _evaluate(case, trained.model, world), trained.dynamics
    assert dynamics is not None
    return {
        "state": trained.model.state_dict(),
        "same on all ranks": len(set(distributed.all_gather_object(_digest(trained.model)))) == 1,
        "losses": [record.train_loss for record in trained.history],
        "rates": [record.lr for record in trained.history],
        "accuracies": [(record.top1, record.test_loss) for record in trained.history],
        "links": [link.sha256 for link in trained.links],
        "hardware": trained.hardware,
        "noise": _noise(trained),
        "confidence": torch.from_numpy(trained.confidence),
        "dynamics": torch.from_numpy(np.stack([dynamics.margin, dynamics.forgetting])),
        "test_loss": result.loss,
        "correct": torch.from_numpy(result.correct),
    }


def _noise(trained: TrainedRun) -> list[float | None]:
    """Return the sums behind the gradient noise scale; an empty list where it was not metered."""
    noise = trained.noise_scale
    return [noise.samples, noise.gradient_sq_norm, noise.noise_trace] if noise else []


def _digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()


def first_weights() -> dict[str, dict[str, Tensor]]:
    """What runs start from, to tell an update from the weights."""
    built = {
        name: models.build_network(name, 4, stem=RESNET.stem, seed=RESNET.seed) for name in ("resnet18", "small_cnn")
    }
    return {name: model.state_dict() for name, model in built.items()}


def main() -> None:
    output, *chosen = sys.argv[1:]
    with distributed.join_process_group(threads_per_worker=1) as world:
        if chosen[0] == "--part":
            name, checkpoints, stop = chosen[1:]
            part = run_part(CASES[name], world, Path(checkpoints), int(stop))
            if world.is_main:
                torch.save(part, output)
            return
        starts = tuple(f"{words} " for words in chosen)
        results: dict[str, Any] = {
            name: run(case, world) for name, case in CASES.items() if f"{name} ".startswith(starts)
        }
        results["first weights"] = first_weights()
        results["ranks"] = int(distributed.all_reduce_sum_(torch.ones((), dtype=torch.int64)))
        results["from rank 0"] = distributed.broadcast_object({"rank": world.rank})
        if world.rank == world.size - 1:
            torch.save(results, output)


if __name__ == "__main__":
    main()
