"""One cycle (Smith & Topin 2018, Super-Convergence): up and down again in straight lines."""


def one_cycle(step: float, total_steps: float, *, rise: float, initial_factor: float) -> float:
    """`initial_factor` at step 0, 1 after the share `rise` of the run, then down towards 0 at its end."""
    assert 0 <= step < total_steps
    peak = rise * total_steps
    if step < peak:
        return initial_factor + (1.0 - initial_factor) * step / peak
    return (total_steps - step) / (total_steps - peak)
