"""Records become something a person reads.

In: records. Out: text. Refuses to measure or to conclude.
"""
