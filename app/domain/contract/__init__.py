"""What a run was asked to be and what it was: the contract's fields, their values, and the keys made of them.

fields/      every field, with its role (stack, config, info), flag and meaning
values       how a value is read, compared and shown
resolve      all statements about a run -> one contract
keys         contract -> stack key and config key
"""
