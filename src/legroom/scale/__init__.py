"""Trains one model with one script on any number of processes and devices."""
