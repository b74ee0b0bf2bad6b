"""From the user's command to a Run and its diagnosis."""
