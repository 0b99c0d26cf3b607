"""A planned A/B on a knob: how many runs it takes, in which order, which uploads belong to it, and what came out.

values       what an experiment is made of, as it is stored and shown
sizing       how many runs a side it takes to see an effect, by the power of the verdict's own test
order        the interleaved order of the runs
change       one or several knobs turned in a contract: the candidate's contract and its config key
joining      which side a run is on, and why some runs do not count
outcome      the A/B: the verdict's own test over the runs that count, and what it is worth
journey      runs as nodes, knobs as edges; journey_text writes the tree for other tools
"""
