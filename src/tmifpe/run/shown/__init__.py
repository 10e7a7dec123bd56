"""A result as tables and as a figure."""
