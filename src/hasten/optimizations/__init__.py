"""Everything that can be changed about a training run from outside: one file for each optimization."""
