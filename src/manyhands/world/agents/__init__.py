"""Agents: one on every host that an engine reaches. It starts that host's ranks and passes on what they say."""
