"""Engines: ways to start ranks. Each is given a function to run on every rank, and knows nothing of what it does."""
