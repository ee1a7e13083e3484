"""Pieces that several strategies share."""
