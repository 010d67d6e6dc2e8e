"""Read one network's results, apply the filter, and build its tables; used by the stage and `filter-features`."""
