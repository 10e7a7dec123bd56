"""One shard of one evaluation: the request, how it is split, and its outcomes."""
