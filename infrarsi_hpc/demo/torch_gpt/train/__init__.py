"""A small GPT that learns to write Python, byte by byte, from the sources every Python installation carries."""
