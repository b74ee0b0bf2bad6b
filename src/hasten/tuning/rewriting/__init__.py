"""The user's source, written otherwise.

In: a file's text, its tree and a line that a finding names. Out: the text changed, or None. Refuses to guess: what is not
written in just one of a few known ways stays as it is.
"""
