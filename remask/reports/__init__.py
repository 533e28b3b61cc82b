"""Reports and tables about finished runs: they read what a run folder holds and write one page."""
