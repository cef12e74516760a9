"""Report: a campaign as a page, as a short text and as data."""
