"""Texts to vectors: query template, token budget and encoders, the same for training, indexing and serving."""
