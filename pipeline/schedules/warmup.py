"""Gradual warm-up (Goyal et al. 2017, Accurate, Large Minibatch SGD, section 2.2)."""


def warmed_up(
    factor: float, step: float, warmup_steps: float, *, start_factor: float | None = None, length: float = 1.0
) -> float:
    """`factor`, brought in linearly.

    Args:
        step: done before this one, counted as schedules do.
        start_factor: share of `factor` at step 0; step `warmup_steps` is the first to have all of it, as in torch's
            LinearLR. None: step 0 has 1 / warmup_steps, and step warmup_steps - 1 is the first to have all.
        length: of this step; below 1 while its batch is smaller than the final one.
    """
    if not step < warmup_steps:
        return factor
    if start_factor is None:
        return factor * min(1.0, (step + length) / warmup_steps)
    return factor * (start_factor + (1.0 - start_factor) * step / warmup_steps)
