"""The experience store on disk."""
