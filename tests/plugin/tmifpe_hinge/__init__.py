"""A small plug-in for tmifpe, with one thing of every kind."""
