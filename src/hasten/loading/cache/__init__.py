"""What is the same in every epoch, from the nearest place that has it."""
