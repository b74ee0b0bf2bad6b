"""The machine: its hardware and software, and its resource use over time."""
