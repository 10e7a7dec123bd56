"""What is done at single modules of a model while it is asked, by hooks that are gone afterwards."""
