"""The doctor: what on this machine, and in a task, would make a fit slow or fail, looked up before anything starts."""
