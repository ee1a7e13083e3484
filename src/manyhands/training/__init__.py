"""Training: what happens in a fit, from the call to the record."""
