"""Speed against named baselines on this machine: what is measured by `agentir eval bench`, one bench a module."""
