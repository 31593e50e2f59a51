"""Contrastive fine-tuning of an embedder on reasoning + query, on the sentence-transformers trainer."""
