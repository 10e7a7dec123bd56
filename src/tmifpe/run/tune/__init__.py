"""The executor: how the model is run, chosen by measuring it for a moment."""
