"""What chat models say: transcripts of agents, and how each family carries its reasoning and its tool calls."""
