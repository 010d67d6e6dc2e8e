"""Run independent tasks in this process or on Dask's workers, with the same bits wherever they run.

The result of a task depends on its arguments, on the number of BLAS and OpenMP threads, and on the libraries and the
kind of CPU. So arguments and order are fixed, threads are pinned around every task, and workers with other libraries
or another CPU are refused, whenever they join.
"""

from pipeline.parallel.pool import task_pool

__all__ = ["task_pool"]
