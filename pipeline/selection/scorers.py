"""The registry of scorers: one file and one line each.

Not in the package's `__init__`, so that training, which needs `arms` alone, does not depend on them.
"""

from pipeline.selection.dbscan import release_radii_by_class
from pipeline.selection.evidence import Scorer

SCORERS: dict[str, Scorer] = {
    "dbscan": release_radii_by_class,
}
