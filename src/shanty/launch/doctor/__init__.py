"""Examines hosts and the connections between them, and repairs them: `shanty doctor`."""
