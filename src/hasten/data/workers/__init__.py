"""What builds the samples: processes, threads, or the training process itself."""
