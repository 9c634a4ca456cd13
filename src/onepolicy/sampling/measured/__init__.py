"""What a server samples with where it does not say, from what it draws.

With one seed, a request that leaves a field out draws the same tokens as one that sends it, if what is sent is what the
server fills in. No request is sent here: a caller hands over a function that draws.
"""
