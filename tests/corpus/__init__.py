"""Training programs as people write them: ones that leak, each with the line to blame, and ones that do not."""
