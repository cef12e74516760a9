"""The five stages and the smaller commands: where the pure core meets the edges."""
