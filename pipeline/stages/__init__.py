"""One module per DVC stage: parse, load, run, save."""

import sys

from pipeline.environment import exit_if_unsupported

# Python imports this package before the module of `python -m pipeline.stages.<stage>`, and sys.argv[0] is "-m" until
# then. The stage's own imports would end in a traceback where the requirements are missing.
if sys.argv[0] == "-m":
    _words = " ".join(getattr(sys, "orig_argv", ())).partition(" -m pipeline.stages.")[2].split()
    exit_if_unsupported(_words[0] if _words else "")
