"""The headline figures of a run, in the order in which they are shown."""

from app.domain.contract.fields.field import MetricField

_METRICS = (
    MetricField("step_time_ms", "Step time", "ms", True, "Median time of one optimizer step over the steady window."),
    MetricField(
        "tokens_per_s_per_gpu", "Tokens", "tokens/s/GPU", False, "Tokens of a step over steady step time and GPUs."
    ),
    MetricField(
        "tflops_per_gpu", "Model FLOPs", "TFLOP/s/GPU", False, "Model FLOPs of a step over steady step time and GPUs."
    ),
    MetricField("mfu_pct", "MFU", "%", False, "Model FLOP/s as a share of the GPU's dense peak for this precision."),
    MetricField("peak_memory_gib", "Peak memory", "GiB", True, "Most memory that any rank had allocated."),
)
METRICS = {metric.name: metric for metric in _METRICS}
