"""A finished model at work: the engine that answers (no HTTP inside), and the server in front of it."""
