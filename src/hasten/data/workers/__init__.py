"""Workers that build samples: processes, threads, or the training process itself."""
