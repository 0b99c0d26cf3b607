import pytest

from app.domain.documents.environment import complete_image, read_container_image, read_image, stated_by_image

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("reference", "name", "digest"),
    [
        ("nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("nvcr.io/nvidia/nemo:26.08.rc5", "nvcr.io/nvidia/nemo:26.08.rc5", ""),
        ("nvcr.io/nvidia/pytorch:26.04-py3", "nvcr.io/nvidia/pytorch:26.04-py3", ""),
        (f"nvcr.io/nvidia/nemo:26.06@{DIGEST}", "nvcr.io/nvidia/nemo:26.06", DIGEST),
        (f"nvcr.io/nvidia/nemo@{DIGEST}", "nvcr.io/nvidia/nemo", DIGEST),
        ("nvcr.io#nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("docker://nvcr.io#nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("docker://$oauthtoken@nvcr.io#nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("docker://nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("/lustre/images/nvidia+nemo+26.06.sqsh", "nvidia/nemo:26.06", ""),
        ("nvcr.io+nvidia+nemo+26.06.sqsh", "nvcr.io/nvidia/nemo:26.06", ""),
        ("ubuntu+22.04.sqsh", "ubuntu:22.04", ""),
        ("my-build_7.sqsh", "my-build_7", ""),
        ("localhost:5000/team/image:dev", "localhost:5000/team/image:dev", ""),
        ("registry.example.com:443/a/b/c", "registry.example.com:443/a/b/c", ""),
        ("rocm/megatron-lm:v25.9_gfx950", "rocm/megatron-lm:v25.9_gfx950", ""),
        ('"nvcr.io/nvidia/nemo:26.06"', "nvcr.io/nvidia/nemo:26.06", ""),
        ("ubuntu", "ubuntu", ""),
    ],
)
def test_names(reference, name, digest):
    image = read_image(reference)
    assert (image.name, image.digest) == (name, digest)


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "two words",
        "UPPER/case:1",
        "a/b:",
        "a:b:c d",
        "nvcr.io/nvidia/nemo@sha256:12",
        "..//x",
        ".sqsh",
        "+.sqsh",
        "x" * 2000,
    ],
)
def test_what_is_no_name_is_refused(reference):
    with pytest.raises(ValueError, match=r"\."):
        read_image(reference)
    assert stated_by_image(reference, "test") == {}


@pytest.mark.parametrize(
    ("reference", "default", "name"),
    [
        ("26.06", "nvcr.io/nvidia/nemo", "nvcr.io/nvidia/nemo:26.06"),
        ("nvidia+nemo+26.06.sqsh", "nvcr.io/nvidia/nemo", "nvcr.io/nvidia/nemo:26.06"),
        ("nvidia/pytorch:26.04-py3", "nvcr.io/nvidia/nemo", "nvidia/pytorch:26.04-py3"),
        ("other.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo", "other.io/nvidia/nemo:26.06"),
    ],
)
def test_a_project_default_completes_a_name(reference, default, name):
    assert complete_image(read_image(reference), default).name == name


def test_fields_and_their_detail():
    document = read_container_image(f"nvcr.io/nvidia/nemo:26.06@{DIGEST}\n".encode())
    assert document.stated["container"].value == "nvcr.io/nvidia/nemo:26.06"
    assert document.stated["container_digest"].value == DIGEST
    assert document.stated["container"].detail == "container image: nvcr.io/nvidia/nemo:26.06"
