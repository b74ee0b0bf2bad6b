"""A Run becomes Findings.

In: a `Run`. Out: a `Diagnosis`. Refuses to measure: no torch, no clock, no processes.
"""
