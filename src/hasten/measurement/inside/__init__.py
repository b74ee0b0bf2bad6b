"""In the measured process: what hasten does there.

In: torch, and the script that uses it. Out: files in the run's folder. Refuses to need anything but torch and the
standard library, for the script's Python may be another than hasten's.
"""
