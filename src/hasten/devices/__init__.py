"""What hasten asks of GPUs and other accelerators."""
