"""Examines hosts and the connections between them, and repairs them: `shanty doctor`.

Every check yields findings; none changes anything but `fixes`.
"""
