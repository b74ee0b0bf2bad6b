"""One page that opens anywhere: everything that a run and a search told, in the order of the reader's questions.

In: records. Out: one HTML file without a link to anything outside. Refuses to measure and to conclude.
"""
