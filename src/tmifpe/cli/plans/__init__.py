"""Plan files: many runs in one checked-in file."""
