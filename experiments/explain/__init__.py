"""What a router does, learned or handcrafted: read off its decisions, not off its rules."""
