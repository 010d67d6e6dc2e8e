"""Which processes may train by a recipe."""

from pipeline.batching import fitting_ranks
from pipeline.config.recipe import Recipe
from pipeline.distributed import WorkerPlan


def plan_of(recipe: Recipe) -> WorkerPlan:
    """What a recipe asks for, and what its simulated workers allow."""
    tree = recipe.reduction == "tree"
    # The bits of a tree depend on the threads; a number that depends on the machine would not do.
    threads = 1 if tree and recipe.threads_per_worker == "auto" else recipe.threads_per_worker
    fitting = fitting_ranks(recipe.simulated_workers, aligned=tree)
    return WorkerPlan(workers=recipe.workers, fitting=fitting, threads=threads)
