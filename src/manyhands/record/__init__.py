"""Measuring: the clock that splits a step into phases, the record of a run, and what the hardware did meanwhile."""
