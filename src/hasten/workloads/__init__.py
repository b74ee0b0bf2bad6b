"""The workloads of `hasten speedtest`, and the images that they train on."""
