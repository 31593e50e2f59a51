"""Documents: the loaders that read them, the chunker that divides them, and the memory-mapped pack that serves them."""
