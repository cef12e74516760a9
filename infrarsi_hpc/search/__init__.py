"""What to try next: the space, seeds, pairs, patches, acquisition, and when to stop. Pure; randomness is given."""
