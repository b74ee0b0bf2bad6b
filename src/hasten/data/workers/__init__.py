"""Who makes the samples: processes, threads, or the training process itself."""
