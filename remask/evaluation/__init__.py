"""A model on tasks, files and texts: what `remask evaluate` measures."""
