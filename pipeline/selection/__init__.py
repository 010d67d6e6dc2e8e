"""Which images to drop: how suspect each one is (scorers), how many go (budgets), and who is compared (arms)."""
