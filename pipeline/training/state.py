"""The state of a training run between two steps: its start, checkpoints, restoring."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from pipeline import distributed
from pipeline.distributed import Compression, Grids, World
from pipeline.models import build_network
from pipeline.models.network import Network
from pipeline.models.timm_networks import check_trainable
from pipeline.optim import OPTIMIZERS, parameter_groups
from pipeline.training.dynamics import ConfidenceTracker, DynamicsTracker
from pipeline.training.evaluation import Evaluation
from pipeline.training.noise_scale import NoiseSample
from pipeline.training.numerics import make_scaler
from pipeline.training.settings import TrainSettings

# Statistics of the images that torchvision's weights were trained on.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class HistoryRecord:
    """The progress of a run: 20 to 39 records, one per step in a run of fewer steps, and one at each evaluation.

    Attributes:
        epoch: passes over the arm so far, may be fractional.
        train_loss: mean per image since the last record, in nats; None if not finite.
        lr: of the last step.
        top1: accuracy on the test images, 0 to 1, if the run ended here; None if not measured.
        test_loss: mean cross-entropy of the test images, in nats; None if not measured or not finite.
    """

    epoch: float
    step: int
    examples: int
    train_loss: float | None
    lr: float
    top1: float | None = None
    test_loss: float | None = None

    def with_evaluation(self, evaluation: Evaluation) -> Self:
        """Return the record with an evaluation of the weights after its step."""
        test_loss = evaluation.loss if math.isfinite(evaluation.loss) else None
        return dataclasses.replace(self, top1=evaluation.top1, test_loss=test_loss)


@dataclass(frozen=True, kw_only=True)
class ChainLink:
    """A link of a run's hash chain, see `hash_chain`.

    Attributes:
        step: optimizer steps done.
        sha256: hex digest.
        groups: (name, 16 hex digits) of each group of tensors, in the order of hashing: the digest of the link through
            the end of the group. Empty where an earlier version of the code trained the run.
    """

    step: int
    sha256: str
    groups: tuple[tuple[str, str], ...] = ()


@dataclass(kw_only=True)
class TrainState:
    """The state of a run between two optimizer steps.

    Attributes:
        average: exponential moving average of the weights; None without one.
        step: optimizer steps done.
        loss_sum: this rank's sum of losses since the last record, 0-dimensional, on the device.
        loss_sums: `loss_sum` after each step of this process since the last record; no part of a checkpoint.
        diverged_at: the first step since the last record at which this rank's loss is not finite, of the steps of
            earlier processes; None: there is none.
        loss_count: samples of all ranks in these sums.
        skipped_steps: steps that the loss scaler skipped for a non-finite gradient.
        compression: of gradients, with this rank's error feedback.
        grids: of the next exact sum of gradients; None before the first.
        confidence_tracker: sums the probabilities of the labels; None tracks none.
        dynamics_tracker: sums the margins of the labels; None tracks none.
        local_optimizers: whether the optimizers differ between ranks.
        links: of the hash chain so far; on rank 0, and on every rank after a checkpoint.
        micro_batch: samples that pass forward together, at most; 0 before it is chosen.
        hardware: descriptions of what the run ran on, in order, each once.
        earlier_seconds: wall time of the processes before this one, until their last checkpoint.
        started_at: when this process began its part, by the monotonic clock.
        pending_link: done when `links` has the last link that was added; None: it has.
    """

    model: Network
    optimizer: Optimizer
    scaler: torch.amp.GradScaler | None
    average: AveragedModel | None
    loss_sum: Tensor
    compression: Compression = field(default_factory=Compression)
    grids: Grids | None = None
    confidence_tracker: ConfidenceTracker | None = None
    dynamics_tracker: DynamicsTracker | None = None
    local_optimizers: bool = False
    loss_sums: list[Tensor] = field(default_factory=list)
    diverged_at: int | None = None
    loss_count: int = 0
    step: int = 0
    skipped_steps: int = 0
    micro_batch: int = 0
    history: list[HistoryRecord] = field(default_factory=list)
    noise: list[NoiseSample] = field(default_factory=list)
    links: list[ChainLink] = field(default_factory=list)
    hardware: list[str] = field(default_factory=list)
    earlier_seconds: float = 0.0
    started_at: float = field(default_factory=time.monotonic)
    pending_link: Future[None] | None = None

    def add_loss(self, loss: Tensor, n_samples: int) -> None:
        """Add this rank's part of a step's summed loss, 0-dimensional, over `n_samples` samples of all ranks."""
        # A new tensor costs no more than an addition in place, and the sums show the first step that was not finite.
        self.loss_sum = self.loss_sum + loss
        self.loss_sums.append(self.loss_sum)
        self.loss_count += n_samples

    def begin_record(self) -> None:
        """Forget the losses so far."""
        self.loss_sum.zero_()
        self.loss_sums.clear()
        self.diverged_at = None
        self.loss_count = 0

    def first_step_not_finite(self) -> int | None:
        """Return the first step since the last record at which this rank's loss is not finite, counted from 1."""
        if self.diverged_at is not None or not self.loss_sums:
            return self.diverged_at
        finite = torch.stack(self.loss_sums).isfinite().tolist()
        return self.step - len(finite) + finite.index(False) + 1 if False in finite else None

    def wait_for_links(self) -> None:
        """Return when `links` has all links that were added; raise the error of the thread that hashes them."""
        if self.pending_link is not None:
            self.pending_link.result()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks in plain values; all ranks call it, and rank 0 has those of the others."""
        self.wait_for_links()
        of_this_rank = {
            "loss_sum": float(self.loss_sum),
            "diverged_at": self.first_step_not_finite(),
            "optimizer": _on_cpu(self.optimizer.state_dict()) if self.local_optimizers else None,
            "compression": self.compression.state_dict(),
        }
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "average": self.average.state_dict() if self.average else None,
            "grids": dataclasses.asdict(self.grids) if self.grids else None,
            "track": self.confidence_tracker.state_dict() if self.confidence_tracker else None,
            "dynamics": self.dynamics_tracker.state_dict() if self.dynamics_tracker else None,
            "ranks": distributed.gather_object(of_this_rank),
            "micro_batch": self.micro_batch,
            "counted": self.loss_count,
            "step": self.step,
            "skipped_steps": self.skipped_steps,
            "history": [dataclasses.asdict(record) for record in self.history],
            "noise": [dataclasses.asdict(sample) for sample in self.noise],
            "links": [dataclasses.asdict(link) for link in self.links],
            "places": list(self.hardware),
            "seconds": self.earlier_seconds + time.monotonic() - self.started_at,
        }

    def load_state_dict(self, saved: Mapping[str, Any], world: World) -> None:
        """Restore a saved state, on the same number of ranks or another."""
        self.model.load_state_dict(saved["model"])
        same_size = len(saved["ranks"]) == world.size
        # Another number of ranks may fit another micro-batch, which rounds differently.
        self.micro_batch = saved["micro_batch"] if same_size else 0
        of_this_rank: Mapping[str, Any] = saved["ranks"][world.rank] if same_size else {}
        self.optimizer.load_state_dict(of_this_rank.get("optimizer") or saved["optimizer"])
        # With compression the number of ranks never changes.
        self.compression.load_state_dict(of_this_rank.get("compression"), self.loss_sum.device)
        if self.scaler:
            self.scaler.load_state_dict(saved["scaler"])
        if self.average:
            self.average.load_state_dict(saved["average"])
        self.grids = Grids(**saved["grids"]) if saved["grids"] else None
        if self.confidence_tracker:
            self.confidence_tracker.load_state_dict(saved["track"], is_main=world.is_main)
        if self.dynamics_tracker:
            self.dynamics_tracker.load_state_dict(saved["dynamics"], is_main=world.is_main)
        # For another number of ranks, rank 0 takes the total.
        total = sum(rank["loss_sum"] for rank in saved["ranks"])
        self.loss_sum.fill_(of_this_rank["loss_sum"] if same_size else total if world.is_main else 0.0)
        # Checkpoints of earlier versions of the code do not say where the loss stopped being finite.
        steps = [rank.get("diverged_at") for rank in ([of_this_rank] if same_size else saved["ranks"])]
        self.diverged_at = min((step for step in steps if step is not None), default=None)
        self.loss_count, self.step, self.skipped_steps = saved["counted"], saved["step"], saved["skipped_steps"]
        self.history = [HistoryRecord(**record) for record in saved["history"]]
        self.noise = [NoiseSample(**sample) for sample in saved["noise"]]
        self.links = [ChainLink(**link) for link in saved["links"]]
        self.hardware = list(saved["places"])
        self.earlier_seconds = saved["seconds"]


def start_state(
    settings: TrainSettings,
    world: World,
    initialize: Callable[[Network], None] | None = None,
    n_tracked_samples: int = 0,
    n_tracked_epochs: int = 0,
) -> TrainState:
    """Build the state before the first step.

    Args:
        initialize: overwrites fresh weights, e.g. by pretrained ones.
        n_tracked_samples: samples whose labels' probabilities and margins are tracked; 0 tracks none.
        n_tracked_epochs: epochs that the run begins.

    Raises:
        InputError: the network has normalization layers that cannot be trained.
    """
    model = build_network(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed)
    check_trainable(model, settings.network)
    if initialize is not None:
        initialize(model)
    model = model.to(world.device).to(memory_format=torch.channels_last)
    groups = parameter_groups(
        model,
        weight_decay=settings.weight_decay,
        decay_norm_and_bias=settings.decay_norm_and_bias,
        outer_layers=(model.input_layer, model.output_layer),
    )
    average = None
    if settings.ema_decay is not None:
        average = _MovingAverage(model, settings.ema_decay)
    n, device = n_tracked_samples, world.device
    return TrainState(
        model=model,
        optimizer=OPTIMIZERS[settings.optimizer](groups, settings.learning_rate, **settings.optimizer_options),
        scaler=make_scaler(settings.precision, world.device),
        average=average,
        compression=Compression(settings.compression, settings.powersgd_rank),
        loss_sum=torch.zeros((), dtype=torch.float64, device=world.device),
        confidence_tracker=ConfidenceTracker(n, device) if n else None,
        local_optimizers=settings.local_from_step is not None,
        dynamics_tracker=DynamicsTracker(n, n_tracked_epochs, device) if n else None,
    )


class _MovingAverage(AveragedModel):
    """An exponential moving average of the weights; the first update copies them, as in torch's class.

    Update t has a decay of min(decay, (1 + t) / (10 + t)), as TensorFlow's ExponentialMovingAverage with `num_updates`.
    With the full decay from the start, a run shorter than a few times 1 / (1 - decay) steps would mostly average its
    first weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self._decay = decay

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Update the average, and copy the buffers of `model`."""
        # Torch's class copies the count to the device, for which the process waits. Here it stays on the CPU.
        count = float(self.n_averaged)
        averaged: list[Tensor] = list(self.module.parameters())
        current: list[Tensor] = list(model.parameters())
        if count == 0:
            torch._foreach_copy_(averaged, current)
        else:
            differences = torch._foreach_sub(current, averaged)
            torch._foreach_mul_(differences, 1 - min(self._decay, (1 + count) / (10 + count)))
            torch._foreach_add_(averaged, differences)
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, other in zip(self.module.buffers(), model.buffers(), strict=True):
            for tensors, tensor in zip(by_dtype.setdefault(own.dtype, ([], [])), (own, other), strict=True):
                tensors.append(tensor)
        for owned, others in by_dtype.values():
            torch._foreach_copy_(owned, others)
        self.n_averaged += 1


def _on_cpu(value: Any) -> Any:
    """Copy nested tensors to the CPU, since ranks on other devices receive them."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(inner) for key, inner in value.items()}
    return [_on_cpu(inner) for inner in value] if isinstance(value, list) else value
