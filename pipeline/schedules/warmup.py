"""Gradual warm-up (Goyal et al. 2017, Accurate, Large Minibatch SGD, section 2.2)."""


def warmed_up(factor: float, step: int, warmup_steps: int) -> float:
    """`factor`, brought in linearly: step 0 gets 1 / warmup_steps of it, step warmup_steps - 1 all."""
    return factor * min(1.0, (step + 1) / warmup_steps) if warmup_steps else factor
