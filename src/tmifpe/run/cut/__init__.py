"""How a run is cut: into shards, and into parts for array jobs."""
