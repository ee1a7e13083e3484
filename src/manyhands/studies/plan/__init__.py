"""plan: what strategies would do, before they are run."""
