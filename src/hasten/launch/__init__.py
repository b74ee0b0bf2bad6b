"""The user's command: started, followed, ended; and what its processes recorded."""
