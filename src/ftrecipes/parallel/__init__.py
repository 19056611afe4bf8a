"""Many devices as one: meshes, recomputing, shards."""
