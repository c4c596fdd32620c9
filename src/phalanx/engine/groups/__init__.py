"""Schedule pod groups: a pod that names a group is never queued alone; its whole tree is tried or nothing is.

`build` turns a group tree into a placement problem, `find_placement` solves it, `trial` checks the rules that counting
cannot judge, `preemption_problem` prepares preemption, `messages` and `statuses` report the result.
"""
