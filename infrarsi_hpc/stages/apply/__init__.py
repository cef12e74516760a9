"""Apply: audit a winner, commit it, take it back."""
