"""Training: one loop that is handed a model, batches and an objective, and knows none of them."""
