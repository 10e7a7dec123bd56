"""Pages to look at: reports, the board."""
