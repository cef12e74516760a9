"""Parse, call a stage, print; an error becomes a message and an exit code."""
