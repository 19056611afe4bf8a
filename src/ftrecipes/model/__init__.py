"""A model is resolved, loaded, quantized, given adapters, and asked for its loss."""
