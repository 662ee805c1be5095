"""What happened to memory: events, the allocator that served them, and what they add up to. Never imports torch."""
