"""Made-up runs of a study, from tables of accuracies."""

from collections.abc import Mapping, Sequence

from pipeline.stats.comparisons import Plan
from pipeline.stats.runs import Run, Setting

PLAN = Plan(margin=0.005, alpha=0.05, primary="random", matched="steps", n_images=10_000)


def made_run(
    arm: str, seed: int, top1: float | None, batch_size: int = 32, rate: float = 0.1, network: str = "resnet18"
) -> Run:
    """One cell; without an accuracy it diverged."""
    return Run(
        setting=Setting("resnet18", batch_size, rate, 5e-4),
        arm=arm,
        filter_network=network,
        seed=seed,
        status="finished" if top1 is not None else "diverged",
        reason="" if top1 is not None else "the loss is not finite",
        peak_learning_rate=rate,
        n_train=100,
        steps=10,
        epochs=3.2,
        top1=top1,
        balanced_accuracy=top1,
        loss=None if top1 is None else 2 - top1,
        history=(),
    )


def made_runs(table: Mapping[str, Sequence[float | None]], batch_size: int = 32, rate: float = 0.1) -> list[Run]:
    """Arm -> top-1 by seed."""
    return [
        made_run(arm, seed, top1, batch_size, rate) for arm, values in table.items() for seed, top1 in enumerate(values)
    ]


Draws = dict[str, list[float | None]]
"""Network of the draw -> top-1 by seed."""


def made_draws(tables: Mapping[str, Draws]) -> list[Run]:
    """Arm -> its draws."""
    return [
        made_run(arm, seed, top1, network=network)
        for arm, draws in tables.items()
        for network, values in draws.items()
        for seed, top1 in enumerate(values)
    ]
