"""What floating point does to the gradients of losses on a model."""
