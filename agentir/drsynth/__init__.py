"""DR-Synth: training data for retrievers that read an agent's reasoning, made from the agent's own trajectories.

The method is AgentIR's: every search of an agent becomes a sub-query with its reasoning; a conventional retriever finds
candidates by the query alone; an oracle that knows the answer ranks them; its first is the positive, its last are the
hard negatives.
"""
