"""Batch -> hidden states -> logits: settings, encoder, attention, noise, heads, network, loss, store, interop."""
