"""Raw files -> documents: sources, cleaning, duplicates, sentences. Start at build.py."""
