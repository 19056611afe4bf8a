"""Metrics, memory and throughput of a run."""
