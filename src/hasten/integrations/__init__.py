"""Callbacks that measure a framework's training loop with `hasten.measure()`."""
