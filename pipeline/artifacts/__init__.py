"""What one stage hands the next: writing whole files or none, reading only sound ones."""
