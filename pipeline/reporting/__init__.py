"""From the artefacts of all stages to the report's numbers, figures and page."""
