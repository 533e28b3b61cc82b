"""Studies: the papers' tables, or one's own questions, as rows of runs that differ in a few lines."""
