"""Studies: questions that several fits answer."""
