"""Examines hosts and the connections between them, and repairs them: `shanty doctor`.

`check` has the order; `hosts` and `pairs` judge facts, `reaching` why a host is not reached,
`this_machine` what is wrong here. `fixes` repairs.
"""
