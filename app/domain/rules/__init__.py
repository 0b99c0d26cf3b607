"""The workflow as rules: what to correct, watch, size and try next for one run, and why.

*.yaml, sources.yaml   the rules and their sources, as data, one topic per file
rule                   what a rule is
facts/                 every fact that a condition may name: meaning, unit, type, how to supply it
derive                 facts that follow from others
expression             conditions: CEL, three-valued
load, lint             files -> rules, and everything that can be wrong with them
engine                 facts + rules -> what fires, what is silent, what asks
rank, precedence       the order of suggestions, and which evidence counts
change                 a rule's change as a diff against the run's own launch arguments
journey                the six phases, and the wall that the evidence points to
run_facts              a run's contract and measurements -> facts
"""
