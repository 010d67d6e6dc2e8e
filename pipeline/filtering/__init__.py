"""From evidence to the filter's tables: shared by the stage and by `filter-features`."""
