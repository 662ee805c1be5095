"""A recorded run as one HTML file: memory by category, over time, by module and line, and in the allocator's blocks."""
