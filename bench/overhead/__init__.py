"""What recording, capturing and watching cost."""
