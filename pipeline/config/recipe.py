"""The training recipe that `finetune` and `train` share."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipeline.config.base import (
    Budget,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
    UnitFraction,
)
from pipeline.config.communication import CommunicationConfig, PostLocalSgd
from pipeline.config.optimization import BatchSchedule, ConstantSchedule, OptimizerConfig, ScheduleConfig, SgdConfig

ModelName = Literal[
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet9", "resnet9_wide", "small_cnn"
]
"""Models of this project and torchvision's ResNets, with `stem`."""


class LrScaling(Section):
    """Scaling of the learning rate with the batch size: lr x (batch / reference_batch_size) ** p.

    `linear` has p = 1, `sqrt` p = 1/2. `legw` has p = 1/2 too, and the warm-up, in epochs for the reference batch,
    grows in proportion to the batch (You et al. 2019, Large-Batch Training for LSTM and Beyond).
    """

    rule: Literal["linear", "sqrt", "legw"]
    reference_batch_size: Positive


class Augmentation(Section):
    """Random crop and flip.

    Attributes:
        crop_size: side of the crop in pixels; evaluation uses the center crop. Null: image_size.
        crop_padding: zero pixels added on every side before the random crop.
        crop_area: smallest fraction of an image's area in a random-resized crop (Szegedy et al. 2015, Going deeper with
            convolutions); for `prepare.storage: files`, whose crops are of this kind. Null: 0.08.
        flip: mirror left to right with probability one half.
    """

    crop_size: Positive | None = None
    crop_padding: NonNegative = 0
    crop_area: Annotated[float, Field(gt=0, le=1)] | None = None
    flip: bool = False


class CheckpointInterval(Section):
    """Interval of checkpoints: exactly one of `seconds` or optimizer `steps`."""

    seconds: PositiveFloat | None = None
    steps: Positive | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if (self.seconds is None) == (self.steps is None):
            raise ValueError("give exactly one of seconds or steps")
        return self


def _legw_has_epochs(recipe: "Recipe") -> None:
    if recipe.lr_scaling is None or recipe.lr_scaling.rule != "legw":
        return
    warmup = getattr(recipe.schedule, "warmup", None)
    if warmup is None or warmup.epochs is None:
        raise ValueError(
            "lr_scaling: legw grows a warm-up in epochs; give `schedule: {..., warmup: {epochs: <for the reference>}}`"
        )


def _warmup_start_has_a_reference(recipe: "Recipe") -> None:
    if getattr(recipe.schedule, "warmup_start_factor", None) == "reference" and recipe.lr_scaling is None:
        raise ValueError(
            "schedule.warmup_start_factor: reference is the batch size of lr_scaling, which is not given; add "
            "`lr_scaling`, or give a factor such as 0.1"
        )


def _not_a_tree(value: object) -> object:
    """Refuse the fixed tree of earlier versions, which needed powers of two, by the name of its replacement."""
    if value == "tree":
        raise ValueError("tree is replaced by exact, which gives equal bits on any number of processes; write exact")
    return value


def _equal_bits_are_possible(recipe: "Recipe") -> None:
    communication = recipe.communication
    if recipe.reduction == "ddp":
        return
    if recipe.micro_batch != "auto":
        raise ValueError("micro_batch: reduction exact runs one simulated worker at a time; remove the key")
    if recipe.compile:
        raise ValueError(
            "compile: reduction exact guarantees equal bits, and a compiler does not; remove one of the two"
        )
    if recipe.fast:
        raise ValueError("fast: reduction exact guarantees equal bits, and fast kernels do not; remove one of the two")
    if communication.library != "ddp" or communication.compression != "none":
        raise ValueError(
            "communication: reduction exact sends float64 sums, which neither Horovod nor compression carries; remove "
            "library and compression, or reduction"
        )


def _instructions_are_known(recipe: "Recipe") -> None:
    if recipe.isa is not None and recipe.compile:
        raise ValueError(
            f"isa: {recipe.isa} is for equal bits, and a compiler chooses its instructions by the processor; remove "
            "isa or compile"
        )


def _noise_has_parts(recipe: "Recipe") -> None:
    alone = recipe.simulated_workers == 1 and (recipe.reduction != "ddp" or recipe.bn_group is None)
    if recipe.noise_scale_steps is not None and alone:
        raise ValueError(
            "noise_scale_steps: needs gradients of two batch sizes, of parts and of the full batch; give 2 or more "
            "simulated_workers, or with reduction ddp a bn_group"
        )


def _post_local_fits(recipe: "Recipe") -> None:
    """Check post-local SGD: local steps have no common gradient, so one process cannot simulate several workers."""
    if recipe.post_local_sgd is None:
        return
    if recipe.workers not in ("auto", recipe.simulated_workers):
        raise ValueError(
            f"post_local_sgd: {recipe.workers} workers cannot simulate simulated_workers "
            f"{recipe.simulated_workers}, since each has separate weights; make the two equal"
        )
    if recipe.precision == "fp16":
        raise ValueError("precision: fp16 scales one loss for all workers, post_local_sgd has one each; use bf16")
    for key, unset in (("reduction", "ddp"), ("ema_decay", None), ("noise_scale_steps", None)):
        if getattr(recipe, key) != unset:
            raise ValueError(
                f"{key}: {getattr(recipe, key)} needs a common gradient at every step; remove it, or post_local_sgd"
            )


def _compression_fits(recipe: "Recipe") -> None:
    """Check compression: each worker compresses a separate gradient, so one process cannot simulate several."""
    communication, simulated = recipe.communication, recipe.simulated_workers
    kind = communication.compression
    if kind == "none":
        return
    if simulated == 1:
        raise ValueError(f"communication.compression: {kind}, but a single worker sends nothing; remove it")
    if recipe.workers not in ("auto", simulated):
        raise ValueError(
            f"communication.compression: {recipe.workers} workers cannot simulate simulated_workers {simulated}, "
            "since each compresses a separate gradient; make the two equal"
        )
    if communication.workers_per_node is not None and (
        simulated % communication.workers_per_node or simulated == communication.workers_per_node
    ):
        raise ValueError(
            f"communication.workers_per_node: {communication.workers_per_node} does not make two or more equal nodes "
            f"of {simulated} simulated_workers; give another"
        )
    if recipe.noise_scale_steps is not None:
        raise ValueError(
            f"noise_scale_steps: needs uncompressed gradients, and {kind} sends none; remove one of the two"
        )
    if kind == "powersgd" and recipe.precision == "fp16":
        raise ValueError(
            "precision: fp16 skips steps that are not finite, and powersgd would add their gradient to the next one; "
            "use bf16"
        )


class Recipe(Section):
    """Optimizer, schedule, regularization and distribution of the global batch.

    Attributes:
        stem: of ResNet-18 to 152: `imagenet` (7x7 stride 2 and max-pooling) or `cifar` (3x3, no pooling). Other
            networks have one stem.
        lr_scaling: null uses the learning rate as written.
        batch_schedule: smaller batches at the start of a run, as fractions of its batch size; null: none.
        decay_norm_and_bias: whether weight decay also applies to BatchNorm parameters and biases.
        clip_norm: largest norm of the gradient of a global batch; null: no clipping.
        ema_decay: evaluate and save an exponential moving average of the weights with this decay per step. After t
            steps the decay is (1 + t) / (10 + t) while that is less, so that a short run does not average its random
            start. Null: the last weights.
        precision: `fp32`; `tf32` (products on a GPU with 10 bits of mantissa); `bf16` or `fp16` (mixed precision;
            `fp16` with dynamic loss scaling, which skips non-finite steps).
        compile: fuse the network's operations by torch.compile. It is faster on GPUs, and compiling takes up to a
            minute for each batch size, once in a study. It changes the result by rounding alone. A run that resumes
            compiles again, so its bits may differ from those of an uninterrupted run. `cuda_graphs` replays the
            compiled passes as CUDA graphs, on GPUs only, for steps so short that launching the GPU's operations one by
            one takes longer than running them.
        fast: on a GPU, let cuDNN choose the fastest kernels by timing them, and use TF32 in the remaining float32
            products. The run does not repeat its bits. Null or false: kernels that do, except for adaptive pooling to
            more than one place, as in `small_cnn` at sides that are no multiple of 4. A CPU ignores it.
        simulated_workers: X. The result is that of X workers on any hardware. Each worker has separate BatchNorm
            statistics over its batch/X images.
        bn_group: approximate images of a BatchNorm group within each worker; null: all images of the worker.
        reduction: summation of gradients. `ddp`: overlapped with the backward pass; equal for every number of
            processes up to rounding. `exact`: rounded to a grid and added without further rounding, one simulated
            worker at a time; equal in every bit for every Y up to X, bucket size and hierarchy. All processes must be
            of one kind: GPU or CPU arithmetic, versions, code.
        workers: Y, the number of processes; must divide X, except with `exact`. `auto`: the largest divisor of X (with
            `exact`: the largest number up to X) that is not above the number of GPUs, or of processes that torchrun
            started; 1 on a machine without either.
        threads_per_worker: CPU threads of each process. `auto`: cores / workers; 1 for `exact`. The bits of
            a result on a CPU depend on it, so another number is another run.
        isa: `avx2` limits torch, oneDNN and MKL to AVX2 and to sums that do not depend on the processor's maker, so
            that processors of several kinds compute equal bits, as far as `canonical-runs --isa avx2` shows. It costs
            time. `finetune` and `train` have the same value, and no study has another. Null: all instructions that the
            processor has. A GPU ignores it.
        micro_batch: images that pass forward at a time. `auto`: as many as fit the memory, in complete BatchNorm
            groups. It changes the result by rounding alone; `exact` passes one simulated worker's images at a time.
        post_local_sgd: when workers begin to take local steps; needs one process per simulated worker. Null: never.
        communication: how gradients are exchanged. `exact` takes its buckets, overlap and hierarchy.
        noise_scale_steps: steps between two samples of the gradient noise scale, which estimates the critical batch
            size; null: never. With `ddp` such a step computes the gradient of each BatchNorm group separately.
        checkpoint: how often a run's state is saved, to resume it after an interruption.
        timeout_seconds: time after which a process that answers, but does not reach the others, counts as lost, and
            the others fail. One that does not answer at all is lost after a minute, or after this time if it is
            shorter. A torchrun that you start with restarts continues with the remaining processes from the last
            checkpoint. Give more than any process waits for another: a checkpoint on a slow disk and a compiler may
            each take minutes.
        eval_batch_size: images per forward pass in evaluation; changes the result by rounding alone.
    """

    stem: Literal["imagenet", "cifar"] = "imagenet"
    optimizer: OptimizerConfig = SgdConfig()
    schedule: ScheduleConfig = ConstantSchedule(name="constant")
    lr_scaling: LrScaling | None = None
    batch_schedule: BatchSchedule | None = None
    decay_norm_and_bias: bool = True
    label_smoothing: UnitFraction = 0.0
    augmentation: Augmentation = Augmentation()
    clip_norm: PositiveFloat | None = None
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: bool | Literal["cuda_graphs"] = False
    fast: bool | None = None
    simulated_workers: Annotated[Positive, Field(le=1_000_000)] = 1
    bn_group: Annotated[Positive, Field(ge=2)] | None = None
    reduction: Annotated[Literal["ddp", "exact"], BeforeValidator(_not_a_tree)] = "ddp"
    workers: Positive | Literal["auto"] = "auto"
    threads_per_worker: Positive | Literal["auto"] = "auto"
    isa: Literal["avx2"] | None = None
    micro_batch: Annotated[Positive, Field(ge=2)] | Literal["auto"] = "auto"
    post_local_sgd: PostLocalSgd | None = None
    communication: CommunicationConfig = CommunicationConfig()
    noise_scale_steps: Positive | None = None
    checkpoint: CheckpointInterval = CheckpointInterval(seconds=60)
    timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    eval_batch_size: Positive = 500

    @property
    def pinned_threads(self) -> int | None:
        """CPU threads of a process if the bits of the result, which depend on them, are guaranteed; None otherwise."""
        if self.reduction == "ddp":
            return None
        return 1 if self.threads_per_worker == "auto" else self.threads_per_worker

    @model_validator(mode="after")
    def _rules_fit_together(self) -> Self:
        _legw_has_epochs(self)
        _warmup_start_has_a_reference(self)
        _equal_bits_are_possible(self)
        _instructions_are_known(self)
        _noise_has_parts(self)
        _post_local_fits(self)
        _compression_fits(self)
        return self


class OptimizedRun(Recipe):
    """A recipe with batch size, learning rate, weight decay and budget: one network trained once."""

    batch_size: Positive
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 0.0
    budget: Budget
