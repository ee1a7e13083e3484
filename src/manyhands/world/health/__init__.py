"""Health: heartbeats, stalls, survivors, and waits that end."""
