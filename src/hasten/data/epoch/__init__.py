"""Epochs: sample order, requests to workers, and batches for the training loop."""
