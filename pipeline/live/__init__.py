"""What a study shows while it runs: its metrics, its page, and the time that its runs still take."""
