"""Run: a campaign from its opening over its rounds to its promotion, and the head that runs it."""
