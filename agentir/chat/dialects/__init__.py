"""How each family of agents carries reasoning and tool calls; see `agentir.chat.dialects.dialect`."""
