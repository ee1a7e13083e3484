"""Bridges: code that people already have, trained or measured as it is."""
