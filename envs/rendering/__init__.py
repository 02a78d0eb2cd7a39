"""What a person sees of an episode: a frame, and the viewers that show it."""
