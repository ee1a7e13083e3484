"""plan: what strategies would do, before they are run, and how good such forecasts were."""
