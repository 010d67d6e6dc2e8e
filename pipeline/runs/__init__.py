"""Runs: those of a study, what each trains on, their execution, their tables, and the ledger of the finished ones."""
