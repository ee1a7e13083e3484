"""One file an experiment: its rows, its columns, what was published, and how the claim is judged."""
