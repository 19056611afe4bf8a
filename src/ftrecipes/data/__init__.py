"""Rows become tokens and labels, and tokens become micro-batches."""
