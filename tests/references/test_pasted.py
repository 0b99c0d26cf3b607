"""Values recognised in pasted text, and the form that they fill."""

import re

import pytest
from starlette.testclient import TestClient

from app.references.pasted import recognise


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "iteration 50/50 | elapsed time per iteration (ms): 20147.3 | throughput per GPU (TFLOP/s/GPU): 299.4 |",
            {"step_time_ms": "20147.3", "tflops_per_gpu": "299.4"},
        ),
        (
            "Qwen3-30B-A3B on 16 x H100, BF16, TP1 PP1 EP16, seq 4096, GBS 1024: 13,011 tokens/s/GPU, 20.15 s per step",
            {
                "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "precision": "bf16", "tp": "1", "pp": "1",
                "ep": "16", "seq_len": "4096", "gbs": "1024", "tokens_per_s_per_gpu": "13011", "step_time_ms": "20150",
            },
        ),
        (
            "| Model | GPUs | GPU | Precision | EP | Tokens/s/GPU |\n|---|---|---|---|---|---|\n"
            "| DeepSeek-V3 | 256 | GB200 | MXFP8 | 64 | 4,021 |",
            {
                "model": "DeepSeek-V3", "gpus": "256", "gpu": "GB200", "precision": "fp8_mx", "ep": "64",
                "tokens_per_s_per_gpu": "4021",
            },
        ),
        ("see https://example.com/a-report of 2026-08", {"url": "https://example.com/a-report", "date": "2026-08"}),
        ("nothing of use", {}),
        ("1" * 5000, {}),  # must not be tried from every digit on
    ],
)  # fmt: skip
def test_values_are_recognised(text: str, values: dict[str, str]) -> None:
    assert recognise(text) == values


def test_pasted_text_fills_the_form(client: TestClient) -> None:
    page = client.get("/references/new", params={"pasted": "Qwen3-30B-A3B, 16xH100, bf16: 299.4 TFLOP/s/GPU"}).text
    inputs = dict(re.findall(r'name="([\w.:-]+)"\s+(?:type="\w+"\s+)?value="([^"]+)"', page))
    assert inputs["tflops_per_gpu"] == "299.4"
    assert "Qwen3-30B-A3B" in inputs.values()
    assert "H100" in inputs.values()
