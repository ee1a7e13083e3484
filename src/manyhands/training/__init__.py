"""Training: what happens in a fit, from the call to the record."""

PRELOAD = (
    "manyhands.training.fit",
)  # what every rank imports: the fork server does it once, beside the caller's own work
