"""Draw conclusions from a `Run`: a `Diagnosis`. Uses only the record, no torch, clock or process."""
