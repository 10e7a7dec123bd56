"""Certificates: upper bounds of the margin that hold for every image of a ball."""
