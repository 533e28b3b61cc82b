"""A finished model -> a folder that others load. Everything here acts on the model from outside."""
