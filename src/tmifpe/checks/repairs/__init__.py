"""What `full` does where gradients mislead: other ways to the same verdict."""
