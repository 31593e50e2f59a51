"""The one bounded episode loop, and its context and terminal policies; agents are presets, never branches."""
