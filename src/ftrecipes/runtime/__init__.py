"""Ranks, device, seed and the log."""
