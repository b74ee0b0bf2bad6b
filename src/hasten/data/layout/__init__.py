"""The memory of batches, and how samples and values are laid out in it."""
