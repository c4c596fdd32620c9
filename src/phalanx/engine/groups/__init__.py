"""Groups in the engine: pods that name a group never queue alone; their root is tried whole, or not at all.

`roots` keeps the forest and the queue in step, `build` turns a tree into a placement problem, `attempt` tries it,
`trial` checks what counting cannot, `commits` watches binds until a gang is really there, `words` says what happened.
"""
