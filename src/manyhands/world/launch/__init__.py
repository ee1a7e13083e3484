"""Processes: how ranks start on this host, what they are sent, how they end."""
