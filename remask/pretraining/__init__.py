"""Pretraining: prepared data and a run -> a run folder, which is a MODEL for every other verb."""
