"""From the order of samples to a batch on the device."""
