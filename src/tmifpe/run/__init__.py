"""One shard of one evaluation: what is asked, how it is cut, and what comes out."""
