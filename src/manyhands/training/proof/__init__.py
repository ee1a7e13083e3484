"""The proof before the promise: what is tried on a few samples before a fit starts."""
