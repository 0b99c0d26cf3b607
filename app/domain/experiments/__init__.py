"""Planned A/Bs on a knob: number and order of runs, the uploads that belong to it, and the result.

values       the parts of an experiment, as stored and shown
sizing       runs per side that detect an effect, by the power of the verdict's test
order        the interleaved order of the runs
change       one or more changed knobs: the candidate's contract and its config key
joining      the side of a run, and why some runs do not count
outcome      the result: the verdict's test over the runs that count, and its evidence level
journey      runs as nodes, knobs as edges; how it continues from a run; texts for other tools
"""
