"""The cache of what known libraries compute from files; never of what the user's code computes."""
