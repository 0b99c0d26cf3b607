"""The contract of a run: its fields, their values, and the keys that identify comparable runs.

fields       every field with its role (stack, config, info), kind and meaning
values       reading, comparing and showing values
derive       fields that follow from others, defaults, unused knobs
checks       contradictions, impossible values, requested against active
resolve      all statements about a run -> one contract
keys         contract -> stack key and config key
statements   fields that users state outside an upload
"""
