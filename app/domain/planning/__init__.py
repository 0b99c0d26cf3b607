"""Feasible layouts of a model over GPUs, by the identities of both meshes of Parallel Folding.

read_request(texts) -> PlanRequest          what is asked, checked
make_plan(request) -> Plan                  layouts best first, a given one judged, why others are out
layout_flags(request, layout) -> LayoutFlags         flags of Megatron-LM and overrides of Megatron-Bridge
nearest_layouts(request, used)              layouts in use for the same model
"""
