"""Training: one loop that is handed a model, batches and an objective, and does not depend on any of them."""
