"""Examines hosts and the connections between them, and repairs them: `shanty doctor`.

`check` has the order; `hosts` and `pairs` evaluate facts, `reaching` explains unreachable hosts,
`this_machine` what is wrong here. `fixes` repairs.
"""
