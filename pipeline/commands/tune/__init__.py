"""Parts of the command `tune`: the search, its report and its files."""
