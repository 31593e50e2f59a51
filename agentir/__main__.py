"""`python -m agentir` is the command `agentir`."""

from agentir.cli import main

main()
