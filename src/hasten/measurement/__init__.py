"""An unmodified script becomes a Run.

In: the command as the user types it. Out: a `Run`. Refuses to judge: no thresholds, no advice, no printing.
"""
