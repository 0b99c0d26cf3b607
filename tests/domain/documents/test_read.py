""""""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.documents.bridge_config import read_bridge_config
from app.domain.documents.document import Document
from app.domain.documents.environment import count_nodes, read_container_image, read_job_environment
from app.domain.documents.launch_command import read_launch_command
from app.domain.documents.read import HEAD_BYTES, read_document, recognise
from app.domain.documents.scalars import read_golden_values
from app.domain.documents.tensorboard import read_tensorboard
from tests.domain.documents.event_files import event, event_file, frame, header, simple
from tests.domain.documents.test_bridge_config import QWEN3_235B
from tests.domain.documents.test_environment import ENVIRONMENT
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


def test_no_log_of_the_corpus_is_mistaken_for_a_document():
    files = sorted((shared_folder("corpus") / "logs").rglob("*.log"))
    assert files
    taken = [(file.name, kind) for file in files if (kind := recognise(file.name, file.read_bytes()[:HEAD_BYTES]))]
    assert taken == []


def test_a_document_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match="larger than 32 MB"):
        read_document("golden values", (b" " * 1024 * 1024 for _ in range(40)))


# --- For any upload, a reader returns a result or an error sentence; it never crashes and never takes long.


READERS = (
    read_bridge_config,
    read_container_image,
    read_golden_values,
    read_job_environment,
    read_launch_command,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


def answers(reader, text) -> None:
    try:
        document = reader(text)
    except ValueError:
        return
    assert isinstance(document, Document)
    lengths = {len(column) for column in document.columns.values()}
    assert len(lengths) <= 1


@pytest.mark.parametrize("reader", READERS)
@settings(deadline=None)
@given(data=st.binary(max_size=300))
def test_bytes(reader, data):
    answers(reader, data)


@pytest.mark.parametrize("reader", READERS)
@settings(deadline=None)
@given(text=st.text(max_size=300))
def test_texts(reader, text):
    answers(reader, text)


@settings(deadline=None)
@given(data=st.binary(max_size=300), name=st.text(max_size=20))
def test_recognising(data, name):
    recognise(name, data)


@settings(deadline=None)
@given(text=st.text(alphabet="abc[],-0123456789() ", max_size=100))
def test_node_lists(text):
    count_nodes(text)


@settings(deadline=None)
@given(records=st.lists(st.binary(max_size=80), max_size=5), junk=st.binary(max_size=50), cut=st.integers(1, 60))
def test_event_files(records, junk, cut):
    data = event_file(*map(frame, records)) + junk
    for size in (1, 7, len(data)):
        chunks = [data[start : start + size] for start in range(0, len(data), size)]
        answers(read_tensorboard, chunks)
    answers(read_tensorboard, [data[:-cut]])


@settings(deadline=None)
@given(series=st.dictionaries(st.sampled_from(["lm loss", "iteration-time", "x vs samples", ""]), JSON), more=JSON)
def test_golden_layouts(series, more):
    for metric in series.values():
        if isinstance(metric, dict):
            metric |= {"start_step": 1, "step_interval": 1, "values": more if isinstance(more, list | dict) else [1.0]}
    answers(read_golden_values, json.dumps(series))
    answers(
        read_golden_values,
        json.dumps({"schema": "golden-run/1", "series": series, "launch_args": more, "recipe": more}),
    )


@settings(deadline=None)
@given(place=st.integers(0, len(QWEN3_235B)), junk=st.text(max_size=10))
def test_containers_with_something_pasted_in(place, junk):
    answers(read_bridge_config, QWEN3_235B[:place] + junk + QWEN3_235B[place:])


@settings(deadline=None)
@given(data=st.data(), value=JSON)
def test_containers_with_another_value(data, value):
    lines = [line for line in QWEN3_235B.splitlines() if line.startswith("  ") and line[2] not in " -"]
    line = data.draw(st.sampled_from(lines))
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    answers(read_bridge_config, QWEN3_235B.replace(line, f"{line.split(':')[0]}: {json.dumps(value)}", 1))


@pytest.mark.parametrize("command", [HARNESS, MEGATRON])
@settings(deadline=None)
@given(words=st.lists(st.text(alphabet="-=.,'\"$|&;()[]{} \\\nabmodel0123456789_", max_size=20), max_size=8))
def test_commands_with_other_words(command, words):
    answers(read_launch_command, command + " " + " ".join(words))


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (read_launch_command, "python a.py --x " + "a." * 60_000 + "=1"),
        (read_launch_command, "python a.py " + "--x " * 60_000),
        (read_launch_command, "bash -c " * 30_000),
        (read_launch_command, "a;" * 120_000),
        (read_launch_command, "python a.py --x " + "\\\n" * 120_000),
        (read_job_environment, "A=" * 2_000_000),
        (read_job_environment, "A=1\n" * 1_000_000),
        (read_job_environment, "SLURM_JOB_NODELIST=" + "a[1-2]," * 10_000),
        (read_bridge_config, "model: {" + "a: 1, " * 100_000),
        (read_bridge_config, "- " * 400_000),
        (read_bridge_config, "a:\n" * 300_000),
        (read_golden_values, '{"a":' * 100_000),
        (read_golden_values, '{"a": {"start_step": 1, "step_interval": 1, "values": {"1": ' + "9" * 10_000 + "}}}"),
        (read_container_image, "a+" * 900 + ".sqsh"),
        (read_container_image, "a-" * 490),
    ],
)
def test_long_inputs_end(reader, text):
    answers(reader, text)


def test_points_far_apart_stay_within_memory():
    series = {
        f"metric {place}": {
            "start_step": place,
            "step_interval": 1000,
            "values": [1.0] * 200,
        }
        for place in range(1, 500)
    }
    document = read_golden_values(json.dumps(series))
    cells = sum(len(column) for column in document.columns.values())
    assert cells <= 8_500_000
    assert document.problems
