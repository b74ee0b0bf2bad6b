"""Plain training scripts, and the images they train on.

The scripts never import hasten: they are what hasten is pointed at.
"""
