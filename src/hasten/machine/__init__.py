"""The machine: what it is, and what it does while a run goes on."""
