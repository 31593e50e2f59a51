"""Search: one protocol, the searchers behind it, and the index folder that holds what they need."""
