"""One model and one script on any number of processes and devices."""
