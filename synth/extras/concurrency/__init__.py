"""Plans that keep to so many transfers at a time through each GPU, switch or root.

A transfer is what one rank sends another in one step. Schedules of all strategies, and one ring
over the fastest hops, are put into steps that keep to the limits (turns.py); a replay that shares
no code with that counts them before a plan is saved, and after it is loaded (replay.py). The bound
is that of the machine in which each limited device is a link (bound.py).

No clock separates steps at run time. Between two steps that use a limited device, each receiver of
the first sends a token, a message of one element, to each sender of the second (handovers.py,
runtime/extras/concurrency). So data of no more pairs of ranks than allowed are in flight through it
at any time, however far ranks run ahead. Not counted are these tokens, the stock collective where
it wins a race (`choose="plan"` leaves it out), and what else the machine does.
"""
