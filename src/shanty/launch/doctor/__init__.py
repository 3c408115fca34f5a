"""What can be wrong with hosts and the ways between them, and its cure: `shanty doctor`.

Every check yields findings; none changes anything but `fixes`.
"""
