"""The comparison of two recorded runs as one HTML file."""
