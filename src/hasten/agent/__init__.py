"""What runs inside the user's process."""
