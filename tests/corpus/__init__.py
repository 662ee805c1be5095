"""Training programs as users write them: leaking ones, each with its storing line marked, and healthy ones."""
