"""A generated profile: a Kineto trace of one rank with the shares of the step that a job states."""

import gzip
import json
from collections.abc import Mapping

from app.demo.job import DemoJob, ProfileShares, Workload

STEPS = 3
FIRST_STEP = 10
BLOCKS = 48
"""Layers and micro-batches of a step, taken together so that the trace stays small."""
COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 27

_PERMUTE, _UNPERMUTE = "_permute_kernel", "_unpermute_kernel"
_UNFUSED = {
    _PERMUTE: "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)",
    _UNPERMUTE: "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::ReduceAdd>(int)",
}
"""What PyTorch runs in their place where the permutation is not fused."""
_COMPUTE = (
    (0.02, "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(unsigned int)"),  # the router
    (0.03, _PERMUTE),
    (0.20, "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<> > >(flash::Params)"),
    (0.24, "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN"),
    (0.38, "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<> > >()"),
    (0.05, "void at::native::(anonymous namespace)::silu_kernel_impl<c10::BFloat16>(int)"),
    (0.04, "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>(int)"),
    (0.04, _UNPERMUTE),
)
"""Kernels of a block with their shares of its compute time."""
_EXCHANGES = {
    "deepep": (
        "void deep_ep::internode::dispatch<false, 8, false, 8>(int4*)",
        "void deep_ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*)",
    ),
    "hybridep": (
        "void hybrid_ep::dispatch_kernel<unsigned short, 10, 8, 2>(hybrid_ep::dispatch_kernel_param_t<>)",
        "void hybrid_ep::combine_kernel<12, 2, 8, 2>(hybrid_ep::combine_kernel_param_t)",
    ),
}
"""Kernels that send tokens to their experts and back, by dispatcher."""
_OPTIMIZER = "void multi_tensor_apply_kernel<4, TensorListMetadata<4>, AdamFunctor<float> >(long)"
_OPTIMIZER_SHARE = 0.02


def render_trace(job: DemoJob, profile: ProfileShares) -> bytes:
    """Return the compressed trace of the last steps of a job."""
    events: list[dict[str, object]] = []
    begin_us = 1_000_000.0
    for index, step_ms in enumerate(job.recording.step_time_ms[-STEPS:]):
        step_us = float(step_ms) * 1e3
        name = f"ProfilerStep#{FIRST_STEP + index}"
        events.append(
            _event("user_annotation", name, begin_us, step_us, thread=9, args={"External id": FIRST_STEP + index})
        )
        _step(events, begin_us, step_us, profile, job.workload)
        begin_us += step_us
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": job.workload.gpus},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": int(job.started.timestamp() * 1e9),
        "traceEvents": events,
    }
    return gzip.compress(json.dumps(document).encode(), mtime=0)


def _step(
    events: list[dict[str, object]], begin: float, step: float, profile: ProfileShares, workload: Workload
) -> None:
    """Add the kernels of a step: in each block, dispatch begins before compute and combine ends after it."""
    dispatch, combine = _EXCHANGES[workload.dispatcher]
    unfused = {} if workload.permute_fusion else _UNFUSED
    optimizer = step * _OPTIMIZER_SHARE
    block = (step * (1 - profile.idle) - optimizer) / BLOCKS
    communication, exposed = (share * step / BLOCKS / 2 for share in (profile.communication, profile.exposed))
    for number in range(BLOCKS):
        start = begin + number * block
        _kernel(events, dispatch, start, communication, COMMUNICATION_STREAM)
        at = start + exposed
        for share, name in _COMPUTE:
            _kernel(events, unfused.get(name, name), at, share * (block - 2 * exposed), COMPUTE_STREAM)
            at += share * (block - 2 * exposed)
        _kernel(events, combine, start + block - communication, communication, COMMUNICATION_STREAM)
    _kernel(events, _OPTIMIZER, begin + BLOCKS * block, optimizer, COMPUTE_STREAM)


def _kernel(events: list[dict[str, object]], name: str, at: float, duration: float, stream: int) -> None:
    correlation = len(events) + 1
    launch = {"cbid": 211, "correlation": correlation}
    events.append(_event("cuda_runtime", "cudaLaunchKernel", at - 250, 4.0, thread=9, args=launch))
    events.append(
        _event(
            "kernel",
            name,
            at,
            duration,
            thread=stream,
            args={"stream": stream, "device": 0, "correlation": correlation},
        )
    )


def _event(
    category: str, name: str, at: float, duration: float, *, thread: int, args: Mapping[str, object]
) -> dict[str, object]:
    process = 0 if category == "kernel" else 9
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": round(at, 3),
        "dur": round(duration, 3), "args": args,
    }  # fmt: skip
