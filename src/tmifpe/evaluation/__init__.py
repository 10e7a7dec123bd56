"""From a model and data to a robust accuracy that has been checked."""
