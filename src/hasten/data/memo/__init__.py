"""What known libraries compute from files, kept: never what the user's code computes."""
