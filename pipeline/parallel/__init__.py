"""Run independent tasks in this process or on Dask's workers, with the same bits on each.

The result of a task depends on its arguments, on the number of BLAS and OpenMP threads, and on the libraries and the
kind of CPU. So arguments and order are fixed, and each task runs with a fixed number of threads. Workers with other
libraries or another CPU are rejected, also those that join later.
"""

from pipeline.parallel.pool import task_pool

__all__ = ["task_pool"]
