"""Findings become a plan, by trial.

In: a command and a time budget. Out: settings that are proven to help, each with what it gained, and the whole run under
them. Refuses to guess: what was not faster by its interval is not kept, what was not seen to train as well is not
called proven.
"""
