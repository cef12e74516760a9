"""Evidence into measurements and verdicts. Pure: the same evidence gives the same verdict."""
