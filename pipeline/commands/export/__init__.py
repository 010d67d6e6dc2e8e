"""The filter's decisions in the formats of other tools."""
