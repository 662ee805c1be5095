"""LG1xx: memory that grows or stays alive."""
