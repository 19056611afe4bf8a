"""Fine-tuning recipes for causal language models. Importing this package imports nothing else."""

__version__ = "0.1.0"
