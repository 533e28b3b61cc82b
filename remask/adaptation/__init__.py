"""Adapting: a finished model and text of one's own -> the model continued on that text, measured before and after."""
