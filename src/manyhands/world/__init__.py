"""The world of a fit: its processes, how they start, who each one is and how they talk."""
