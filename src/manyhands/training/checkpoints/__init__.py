"""Checkpoints: written while training goes on, read by any strategy with any number of ranks."""
