"""Feasible layouts of a model over GPUs, with their predicted memory and step time.

read_request(texts) -> PlanRequest          the checked request
make_plan(request, records) -> Plan         layouts best first, a given one judged, why others were rejected
offer_flags(plan, offer) -> LayoutFlags     flags of Megatron-LM and overrides of Megatron-Bridge
records_of(used), nearest_layouts(request, used)    layouts in use for the same model
predict_change(now, then) -> LayoutChange   what another layout changes for one run
"""
