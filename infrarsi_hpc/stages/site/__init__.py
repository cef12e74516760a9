"""Site: profiles found, checked, listed, taken in and given away."""
