"""Runs on a CUDA device; skipped where there is none. docs/gpu.md says what has run."""
