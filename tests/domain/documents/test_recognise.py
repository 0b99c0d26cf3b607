import pytest

from app.domain.documents.read import HEAD_BYTES, read_document, recognise
from tests.domain.documents.event_files import event, event_file, header, simple
from tests.domain.documents.test_bridge_config import QWEN3_235B
from tests.domain.documents.test_job_environment import ENVIRONMENT
from tests.domain.documents.test_launch_command import HARNESS, MEGATRON
from tests.shared_papers import shared_folder

GOLDEN = b'{"lm loss": {"start_step": 1, "end_step": 1, "step_interval": 1, "values": {"1": 10.9}}}'


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (event_file(event(1, simple("lm loss", 1.0))), "tensorboard"),
        (header(), "tensorboard"),
        (GOLDEN, "golden values"),
        (QWEN3_235B.encode(), "bridge configuration"),
        (QWEN3_235B.split("\n", 1)[1].encode(), "bridge configuration"),
        (MEGATRON.encode(), "launch command"),
        (HARNESS.encode(), "launch command"),
        (b"./scripts/training/train.sh --nodes 8 --gpus-per-node 8 --recipe a_config", "launch command"),
        (b"--tensor-model-parallel-size 2 --bf16", "launch command"),
        (ENVIRONMENT.encode(), "job environment"),
        (b'{"SLURM_JOB_ID": "12", "PATH": "/bin"}', "job environment"),
        (b"SLURM_JOB_ID=12\0PATH=/bin\0", "job environment"),
        (b"nvcr.io/nvidia/nemo:26.06\n", "container image"),
        (b"nvidia+nemo+26.06.sqsh", "container image"),
    ],
)
def test_kinds(head, kind):
    assert recognise("upload.bin", head) == kind
    assert read_document(kind, [head[:100], head[100:]]).kind == kind


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("events.out.tfevents.1", b"not an event file"),
        ("golden_values.json", b'{"a": 1}'),
        ("ConfigContainer.yaml", b"a: 1\nb: 2\n"),
        ("env.txt", b"hello\nworld\n"),
        ("image.txt", b"hello\n"),
        ("command.sh", b"ls -l\n"),
        ("run.log", b""),
        ("run.log", b"\x00\x01\x02\x03" * 100),
        ("run.log", b"PK\x03\x04"),
        ("run.log", b"2026-01-01 using world size: 8, data-parallel size: 1\n iteration 1/ 10 | lm loss: 1.0 |\n"),
    ],
)
def test_a_name_alone_decides_nothing(name, head):
    assert recognise(name, head) is None


def test_no_log_of_the_corpus_is_taken_for_a_document():
    files = sorted((shared_folder("corpus") / "logs").rglob("*.log"))
    assert files
    taken = [(file.name, kind) for file in files if (kind := recognise(file.name, file.read_bytes()[:HEAD_BYTES]))]
    assert taken == []


def test_a_document_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match="larger than 32 MB"):
        read_document("golden values", (b" " * 1024 * 1024 for _ in range(40)))
