"""Build the report: numbers, figures, page and Markdown, from the artifacts of all stages."""
