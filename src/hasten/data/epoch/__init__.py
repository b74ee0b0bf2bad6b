"""An epoch: the order, what is asked for, what comes, and what is handed out."""
