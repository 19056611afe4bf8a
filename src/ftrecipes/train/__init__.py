"""One step, the loop and evaluation."""
