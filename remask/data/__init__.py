"""Token ids -> examples -> masks -> batches, all at load time: `batches.open_batches` is the way in."""
