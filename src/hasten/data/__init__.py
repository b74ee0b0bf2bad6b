"""Data loading: from sample order to batches on the device."""
