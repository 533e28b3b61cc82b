"""Texts -> an index that is searched: passages, vectors, words, and how well they find what they should."""
