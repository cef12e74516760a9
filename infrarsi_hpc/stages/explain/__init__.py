"""Explain: what a campaign would make of a file or a job."""
