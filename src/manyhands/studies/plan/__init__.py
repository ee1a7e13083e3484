"""plan: what a strategy would do before it is run, and how such forecasts turned out."""
