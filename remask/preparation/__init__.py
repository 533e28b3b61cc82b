"""Raw files -> documents -> a vocabulary -> token shards, as one PREPARED folder."""
