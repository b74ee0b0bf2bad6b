"""Where batches lie, and how samples and values become bytes there."""
