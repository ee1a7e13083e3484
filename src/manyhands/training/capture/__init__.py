"""Captured steps: the ordinary step recorded once in a CUDA graph and replayed."""
