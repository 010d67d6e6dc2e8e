"""Functions of the operating system for processes."""

import sys

from tests.fixtures.training import run

_CODE = """
import resource, sys
from pipeline.processes import disable_malloc_trim
if sys.argv[1] == "keep":
    disable_malloc_trim()
for _ in range(20):
    b"x" * 2**26
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def test_freed_memory_is_used_again_without_page_faults() -> None:
    """Twenty arrays of 64 MB, one after another, touch the pages of one."""
    faults = {}
    for how in ("keep", "return"):
        done = run([sys.executable, "-c", _CODE, how])
        assert done.returncode == 0, done.stderr
        faults[how] = int(done.stdout)
    assert faults["keep"] < faults["return"] / 4
