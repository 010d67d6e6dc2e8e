"""Independent tasks in this process or on Dask's workers, with the same bits wherever they run.

What a task returns depends on its arguments, on the number of BLAS and OpenMP threads, and on the
libraries and the kind of CPU below them. Arguments and order are given, threads are pinned around
every task, and workers whose libraries or CPU are others are refused, whenever they join.
"""

from pipeline.parallel.pool import task_pool

__all__ = ["task_pool"]
