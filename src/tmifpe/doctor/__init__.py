"""Is this installation well? What is looked at must not be able to bring the doctor down, so nothing here imports
torch, or anything that does, before it is known to import."""
