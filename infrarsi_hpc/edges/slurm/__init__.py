"""Slurm at arm's length: its texts read by pure functions, its commands run in few places."""
