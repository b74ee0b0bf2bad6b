"""Fixes at work: what an installer does in the training process.

In: a site and a setting. Out: torch behaves otherwise, and `handle.patches.undo()` puts everything back. Needs torch and
the standard library only (our own loader needs NumPy besides). Refuses to break the script: a fix that cannot be put
on says why, and training goes on without it.
"""
