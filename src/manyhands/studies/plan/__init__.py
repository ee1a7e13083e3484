"""What a strategy would do with a task, forecast before it is run."""
