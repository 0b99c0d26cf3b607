"""Launches that have not run: scripts with variables and arrays, commands, and configurations of several trainers."""

import re

import pytest

from app.domain.documents.metadata import read_metadata
from app.domain.documents.shell import expand
from app.domain.rules.launch_check import LaunchCheck, check_launch, marked_launch
from app.domain.rules.load import built_in_rules

SCRIPT = """#!/bin/bash
#SBATCH --nodes=8
GPUS_PER_NODE=8
EP=${EP:-16}
MODEL=(
  --num-layers 48 --hidden-size 2048 --num-attention-heads 32  # Qwen3-30B-A3B
  --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --seq-length 4096
)
MODEL+=(--expert-model-parallel-size $EP)
BATCH="--micro-batch-size 1 --global-batch-size $((SLURM_NNODES * GPUS_PER_NODE * 16))"
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes $SLURM_NNODES --nproc-per-node $GPUS_PER_NODE pretrain_gpt.py \\
  "${MODEL[@]}" $BATCH --bf16 --pipeline-model-parallel-size 4 FLAGS
"""


def checked(text: str, **facts: object) -> LaunchCheck:
    return check_launch(text, built_in_rules(), read_metadata({"gpu": "H100", **facts}), settings=None)


def ids(text: str, **facts: object) -> tuple[set[str], set[str]]:
    check = checked(text, **facts)
    return {item.rule.id for item in check.blockers}, {item.rule.id for item in check.warnings}


def test_variables_arrays_and_continuations_are_filled_in() -> None:
    check = checked(SCRIPT.replace("FLAGS", "--moe-token-dispatcher-type alltoall"))
    values = {name: field.value for name, field in check.contract.fields.items()}
    assert (values["gpus"], values["gbs"], values["ep"], values["pp"], values["num_experts"]) == (64, 1024, 16, 4, 128)
    assert (values["dp"], values["ga"], values["dispatcher"]) == (16, 64, "alltoall")
    assert values["env.CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert (check.blockers, check.problems) == ((), ())


def test_assignments_on_one_line_are_read_and_a_flag_that_a_program_computes_has_no_default() -> None:
    flags = "--expert-tensor-parallel-size 1 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep"
    launch = "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 48 --num-experts 128 "
    launch += f"--tensor-model-parallel-size $TP --expert-model-parallel-size ${{EP}} {flags}"
    check = checked(f'TP=2; EP="${{EP:-12}}"\n{launch}')
    assert {name: check.contract.fields[name].value for name in ("tp", "ep")} == {"tp": 2, "ep": 12}
    assert "scale-expert-divisible" in {item.rule.id for item in check.blockers}
    computed = checked(f"TP=2; EP=$(choose_ep)\n{launch}")
    assert "ep" not in computed.contract.fields
    assert "disp-tpxep-one" not in {item.rule.id for item in computed.blockers}
    assert any("--expert-model-parallel-size" in problem for problem in computed.problems)


@pytest.mark.parametrize(
    ("flags", "blockers"),
    [
        ("--overlap-moe-expert-parallel-comm --moe-token-dispatcher-type alltoall", {"eo-needs-vpp"}),
        (
            "--overlap-moe-expert-parallel-comm --moe-shared-expert-overlap",
            {"eo-no-shared-overlap", "eo-needs-dispatcher"},
        ),
        ("--cpu-offloading --cpu-offloading-num-layers 2", {"fit-act-offload-pp"}),
        (
            "--cuda-graph-impl transformer_engine --cuda-graph-modules moe moe_router",
            {"cg-scope-exclusive", "cg-te-rng"},
        ),
        ("--global-batch-size 1000", {"scale-gbs-divisible"}),
        ("--recompute-granularity full", {"fit-recompute-full-fields"}),
        ("--tensor-model-parallel-size 2", {"scale-moe-tp-needs-sp"}),
        ("--tensor-model-parallel-size 64 --sequence-parallel", {"scale-heads-tp"}),
        ("--pipeline-model-parallel-size 1 --num-layers-per-virtual-pipeline-stage 2", {"scale-interleave-pp"}),
        ("--pipeline-model-parallel-size 1 --num-virtual-stages-per-pipeline-rank 2", {"scale-interleave-pp"}),
        ("--num-layers-per-virtual-pipeline-stage 5", {"scale-chunk-divisible"}),
        ("--max-position-embeddings 2048", {"scale-positions"}),
        ("--fp16", {"prec-two-formats"}),
        ("--moe-router-topk 256", {"scale-router-topk-experts"}),
        ("--moe-router-enable-expert-bias", {"disp-expert-bias-softmax"}),
        ("--moe-router-group-topk 4", {"disp-router-groups"}),
        ("--moe-router-num-groups 7 --moe-router-group-topk 4", {"disp-router-groups"}),
        ("--moe-router-padding-for-fp8 --moe-token-dispatcher-type alltoall", {"disp-router-padding"}),
        (
            "--moe-shared-expert-overlap --moe-shared-expert-intermediate-size 768 --moe-enable-deepep",
            {"disp-shared-overlap-type", "disp-deepep-switch-type"},
        ),
    ],
)
def test_blockers_are_named_before_the_job_queues(flags: str, blockers: set[str]) -> None:
    assert blockers <= ids(SCRIPT.replace("FLAGS", flags))[0]


def test_groups_that_divide_the_experts_block_no_launch() -> None:
    for flags in ("--moe-router-num-groups 8 --moe-router-group-topk 4", "--moe-router-num-groups 7"):
        assert "disp-router-groups" not in ids(SCRIPT.replace("FLAGS", flags))[0]


def test_a_model_without_a_name_has_no_hybrid_layers_if_the_launch_states_none() -> None:
    script = SCRIPT.replace("--num-layers 48", "--num-layers 47")
    assert "scale-layers-pp" in ids(script.replace("FLAGS", ""))[0]
    assert "scale-layers-pp" not in ids(script.replace("FLAGS", "--hybrid-layer-pattern $PATTERN"))[0]
    own = checked(script.replace("FLAGS", "").replace("pretrain_gpt.py", "train.py"))
    assert "hybrid_layer_pattern" in own.unknown


def test_layers_per_virtual_stage_state_the_virtual_stages_if_they_divide() -> None:
    counted = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    for layers, flags, stages in ((48, "", 4), (46, counted, 4), (48, counted, None)):
        script = SCRIPT.replace("--num-layers 48", f"--num-layers {layers}")
        check = checked(script.replace("FLAGS", f"--num-layers-per-virtual-pipeline-stage 3 {flags}"))
        assert check.contract.fields["vpp"].value == stages


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--moe-token-dispacher-type", "--moe-token-dispatcher-type"),
        ("--moe_router_topk", "--moe-router-topk"),
        ("--expert-parallel-size", "--expert-model-parallel-size"),
        ("--moe-ffn-hidden-size", ""),
        ("--no-masked-softmax-fusion", ""),
        ("--our-own-option", ""),
    ],
)
def test_a_misspelt_flag_is_named_with_the_flag_that_was_meant(flag: str, meant: str) -> None:
    stock = SCRIPT.replace("FLAGS", f"{flag} 8")
    script = stock.replace("pretrain_gpt.py", "train.py")
    check = checked(script)
    warnings = {item.rule.id: item.why for item in check.warnings}
    assert ("contract-misspelt-flags" in warnings) == bool(meant)
    assert meant in warnings.get("contract-misspelt-flags", "")
    marked = [part.text for part in marked_launch(script, check.warnings, check.wrong_flags) if part.kind]
    assert (f"{flag} 8" in marked) == bool(meant)
    blockers = {item.rule.id: item.why for item in checked(stock).blockers}
    assert ("contract-refused-flags" in blockers) == bool(meant)
    assert meant in blockers.get("contract-refused-flags", "")
    wrapped = f"./launch.sh --moe-router-topk 8 --num-layers 4 --bf16 {flag} 8"
    assert "contract-misspelt-flags" not in ids(wrapped)[1]


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ("--moe-token-dispatcher-type all2all", "is all2all, takes allgather, alltoall, flex"),
        ("--moe-token-dispatcher-type alltoall", ""),
        ("--moe-token-dispatcher-type $TYPE", ""),
        ("--moe-router-load-balancing-type aux", "is aux, takes aux_loss"),
        ("--moe-router-load-balancing-type aux_loss seq_aux_loss", ""),
        ("--recompute-granularity half", "is half, takes selective, full)"),
        ("--recompute-granularity selective", ""),
        ("--attention-backend fused", ""),
    ],
)
def test_a_value_that_the_trainer_refuses_is_a_blocker(flags: str, refused: str) -> None:
    check = checked(SCRIPT.replace("FLAGS", flags))
    blockers = {item.rule.id: item.why for item in check.blockers}
    assert ("contract-refused-flags" in blockers) == bool(refused)
    assert refused in blockers.get("contract-refused-flags", "")
    assert len(check.problems) == ("$" in flags), "a refused value is the blocker's only"
    states_type = "--moe-token-dispatcher-type" in flags
    assert ("disp-default-allgather" in {item.rule.id for item in check.warnings}) == (not states_type)
    marked = [part.text for part in marked_launch(flags, check.blockers, check.wrong_flags) if part.kind]
    assert bool(marked) == bool(refused)


def test_the_flags_of_another_command_are_not_those_of_the_trainer() -> None:
    script = "python prepare.py --moe_router_topk 8\n" + SCRIPT.replace("FLAGS", "")
    assert "contract-refused-flags" not in ids(script)[0]


@pytest.mark.parametrize(
    ("switch", "version", "blocks"),
    [
        ("--group-query-attention", "0.15.3", True),
        ("--group-query-attention", "0.16.1", False),
        ("", "0.15.3", False),
    ],
)
def test_query_groups_are_divisible_by_tp(switch: str, version: str, blocks: bool) -> None:
    """Since 0.16 TP may be a multiple of the groups; without the switch Megatron-LM ignores them."""
    flags = f"--tensor-model-parallel-size 8 --sequence-parallel --num-query-groups 4 {switch}"
    blockers, _ = ids(SCRIPT.replace("FLAGS", flags), mcore_version=version)
    assert ("scale-query-groups-tp" in blockers) == blocks


@pytest.mark.parametrize(
    ("launch", "asked"),
    [
        (SCRIPT.replace("FLAGS", "--tensor-model-parallel-size 2 --sequence-parallel"), set()),
        ("recipe: {target: a.b.qwen}\nmodel: {tensor_model_parallel_size: 2, num_moe_experts: 128}", {"sp"}),
    ],
)
def test_sequence_parallelism_may_come_from_a_flag_or_a_recipe(launch: str, asked: set[str]) -> None:
    check = checked(launch)
    assert "scale-moe-tp-needs-sp" not in {item.rule.id for item in check.blockers}
    assert {"sp"} & set(check.unknown) == asked


def test_a_job_with_data_parallelism_gets_no_warning_about_its_size() -> None:
    """16 GPUs are TP 2 x EP 8, like many other jobs with DP."""
    flags = "--tensor-model-parallel-size 2 --sequence-parallel --moe-token-dispatcher-type alltoall"
    script = (
        SCRIPT.replace("nodes=8", "nodes=2").replace("EP:-16", "EP:-8").replace("-size 4 FLAGS", f"-size 1 {flags}")
    )
    check = checked(script)
    assert (check.contract.fields["gpus"].value, check.contract.fields["dp"].value) == (16, 8)
    assert not any("gpus" in {fact.fact.name for fact in item.facts} for item in check.warnings)


def test_a_launcher_of_primus_leaves_the_model_to_its_preset() -> None:
    """Its switches have values. Like Megatron-LM, it turns sequence parallelism off where TP is 1."""
    command = "export EXP=qwen3_30B_A3B.yaml\nbash ./examples/run_slurm_pretrain.sh --seq_length 4096 --mock_data True "
    command += "--expert_model_parallel_size 16 --pipeline_model_parallel_size 8 --sequence_parallel True"
    check = checked(command, gpus=128)
    assert (check.trainer, check.blockers) == ("Primus", ())
    assert "num_experts" not in check.contract.fields
    assert "scale-gpus-below-min" in {item.rule.id for item in checked(command, gpus=64).blockers}


def test_flags_that_are_left_out_have_the_defaults_of_the_trainer() -> None:
    blockers, warnings = ids(SCRIPT.replace("FLAGS", ""))
    assert blockers == set()
    assert "disp-default-allgather" in warnings


@pytest.mark.parametrize(
    ("version", "flags", "blockers"),
    [
        ("core_v0.13.1", "--overlap-moe-expert-parallel-comm", {"contract-newer-flags"}),
        ("0.14.0", "--overlap-moe-expert-parallel-comm", set()),
        ("0.15.3", "--moe-token-dispatcher-type flex", {"disp-flex-needs-switch"}),
        ("0.15.3", "--moe-token-dispatcher-type flex --moe-enable-deepep", set()),
        ("0.16.1", "--moe-token-dispatcher-type flex", set()),
        (
            "0.15.3",
            "--moe-token-dispatcher-type alltoall --fine-grained-activation-offloading",
            {"contract-newer-flags"},
        ),
        ("0.16.1", "--cuda-graph-impl local --cuda-graph-modules attn", {"contract-newer-flags"}),
    ],
)
def test_the_stated_release_decides_which_flags_exist(version: str, flags: str, blockers: set[str]) -> None:
    of_releases = {"contract-newer-flags", "disp-flex-needs-switch"}
    assert ids(SCRIPT.replace("FLAGS", flags), mcore_version=version)[0] & of_releases == blockers


@pytest.mark.parametrize(
    ("version", "flags", "sms"),
    [
        (None, "flex --moe-flex-dispatcher-backend deepep", None),
        ("0.12.1", "flex --moe-enable-deepep", None),
        ("0.14.0", "flex --moe-enable-deepep", 20),
        ("0.16.1", "flex --moe-flex-dispatcher-backend hybridep", 16),
        ("0.16.1", "flex --moe-flex-dispatcher-backend deepep --moe-deepep-num-sms 24", 24),
        ("0.17.0", "flex --moe-flex-dispatcher-backend deepep", None),
        ("0.16.1", "alltoall", None),
    ],
)
def test_omitted_flags_have_the_defaults_of_the_stated_release(
    version: str | None, flags: str, sms: int | None
) -> None:
    stated = {} if version is None else {"mcore_version": version}
    fields = checked(SCRIPT.replace("FLAGS", f"--moe-token-dispatcher-type {flags}"), **stated).contract.fields
    assert fields["dispatch_sms"].value == sms


def test_values_set_by_a_recipe_or_preset_stay_unknown() -> None:
    assert {"num_experts", "mbs", "grouped_gemm"}.isdisjoint(
        checked(PRIMUS.replace("num_experts: 64", "")).contract.fields
    )
    assert checked(PRIMUS).contract.fields["precision"].value == "bf16"
    assert "mbs" not in checked(BRIDGE).contract.fields
    assert [checked(text).trainer for text in (PRIMUS, BRIDGE, HYDRA, SCRIPT)] == [
        "Primus", "Megatron-Bridge", "Megatron-Bridge", "Megatron-LM",
    ]  # fmt: skip


def test_a_backend_without_flex_is_the_pitfall_and_not_that_backend() -> None:
    for flags in ("", "--moe-token-dispatcher-type alltoall"):
        text = SCRIPT.replace("FLAGS", f"{flags} --moe-flex-dispatcher-backend deepep")
        check = checked(text)
        assert check.contract.fields["dispatcher"].value != "deepep"
        assert "disp-flex-flag-only" in {item.rule.id for item in check.warnings}


PRIMUS = """
work_group: demo
exp_name: mixtral
modules:
  pre_trainer:
    framework: megatron
    overrides:
      tensor_model_parallel_size: 1
      pipeline_model_parallel_size: ${PRIMUS_PP:4}
      expert_model_parallel_size: 8
      num_experts: 64
      overlap_moe_expert_parallel_comm: true
      moe_token_dispatcher_type: alltoall
      bf16: true
"""
BRIDGE = """
model:
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 4
  expert_model_parallel_size: 8
  num_moe_experts: 64
  moe_token_dispatcher_type: alltoall
comm_overlap:
  overlap_moe_expert_parallel_comm: true
"""
HYDRA = (
    "torchrun --nproc-per-node 8 run_recipe.py --recipe qwen3_30b_a3b_pretrain_config "
    "model.pipeline_model_parallel_size=4 model.expert_model_parallel_size=8 model.num_moe_experts=64 "
    "model.moe_token_dispatcher_type=alltoall model.virtual_pipeline_model_parallel_size=null "
    "comm_overlap.overlap_moe_expert_parallel_comm=true"
)


@pytest.mark.parametrize(("text", "facts"), [(PRIMUS, {}), (BRIDGE, {"vpp": "none"}), (HYDRA, {})])
def test_configurations_of_other_trainers_are_read(text: str, facts: dict[str, object]) -> None:
    assert "eo-needs-vpp" in ids(text, **facts)[0]


NEMO_2 = """
trainer:
  num_nodes: 4
  devices: 8
  strategy:
    tensor_model_parallel_size: 1
    pipeline_model_parallel_size: 4
    expert_model_parallel_size: 8
    sequence_parallel: true
    ddp: {overlap_grad_reduce: true}
data: {global_batch_size: 254, micro_batch_size: 1, seq_length: 4096}
model:
  config: {num_moe_experts: 12, activation: swiglu}
"""
NEMO_1 = (
    "srun python megatron_gpt_pretraining.py --config-name=mixtral trainer.num_nodes=4 trainer.devices=8 "
    "++model.tensor_model_parallel_size=1 model.context_parallel_size=1 +model.expert_model_parallel_size=8 "
    "model.num_moe_experts=12 model.sequence_parallel=true model.pipeline_model_parallel_size=4 "
    "model.micro_batch_size=1 model.global_batch_size=254 model.encoder_seq_length=4096 "
    "model.activations_checkpoint_granularity=full"
)
TEST_CASE = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 48
  --num-experts: 128
  --expert-model-parallel-size: 12
  --tensor-model-parallel-size: ${TP}
  --recompute-granularity: selective
  --recompute-modules: [mlp moe_act]
  --moe-layer-freq: ([0]*1+[1]*47)
  --moe-router-pre-softmax: false
  --bf16: true
"""


@pytest.mark.parametrize("text", [NEMO_2, NEMO_1])
def test_recipes_of_nemo_are_read_by_their_own_names(text: str) -> None:
    check = checked(text)
    values = {name: field.value for name, field in check.contract.fields.items()}
    expected = {"gpus": 32, "gpus_per_node": 8, "pp": 4, "ep": 8, "gbs": 254, "seq_len": 4096, "num_experts": 12}
    assert {name: values[name] for name in expected} == expected
    assert {"scale-sp-needs-tp", "scale-expert-divisible"} <= {item.rule.id for item in check.blockers}
    if text == NEMO_1:
        assert values["recompute_granularity"] == "full"
        assert "scale-gbs-divisible" in {item.rule.id for item in check.blockers}


def test_a_megatron_lm_test_configuration_is_read_as_its_command() -> None:
    check = checked(TEST_CASE)
    values = {name: field.value for name, field in check.contract.fields.items()}
    assert (values["ep"], values["recompute_modules"], values["env.CUDA_DEVICE_MAX_CONNECTIONS"]) == (
        12, ("mlp", "moe_act"), "1",
    )  # fmt: skip
    assert "tp" not in values
    assert {"scale-expert-divisible", "fit-recompute-moe-act-gg"} <= {item.rule.id for item in check.blockers}


def test_flags_that_a_script_may_add_are_unknown_and_not_off() -> None:
    flags = "--recompute-granularity selective --recompute-modules moe_act moe --overlap-moe-expert-parallel-comm "
    flags += "--moe-token-dispatcher-type alltoall --cuda-graph-impl transformer_engine --cuda-graph-modules moe_router"
    blockers = {item.rule.id for item in checked(f"TP=2 PP=8 bash ./sbatch_benchmarking.sh {flags}").blockers}
    assert blockers == {"eo-no-moe-recompute", "cg-moe-recompute"}
    own = {item.rule.id for item in checked(f"torchrun --nproc-per-node 8 pretrain_gpt.py {flags}").blockers}
    assert {"fit-recompute-moe-act-gg", "cg-te-rng"} <= own
    assert "sbatch_benchmarking.sh" in checked(f"bash ./sbatch_benchmarking.sh {flags}").defaults


def test_slurm_reports_the_gpus_that_srun_does_not_set() -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nCMD='python pretrain_gpt.py --bf16'\n"
    check = checked(f'{script}srun --mpi=pmix bash -c "$CMD --pipeline-model-parallel-size 5"')
    assert check.contract.fields["gpus"].value == 32
    assert "scale-world-identity" in {item.rule.id for item in check.blockers}
    smaller = checked(f"{script}srun -N 2 --gpus-per-node 4 python pretrain_gpt.py --bf16")
    assert smaller.contract.fields["gpus"].value == 8


def test_the_name_of_a_recipe_identifies_its_model() -> None:
    launch = "python run_recipe.py --recipe gpt_oss_20b_pretrain_config model.expert_model_parallel_size=12"
    check = checked(launch)
    assert check.contract.fields["model"].value == "GPT-OSS-20B"
    assert "scale-expert-divisible" in {item.rule.id for item in check.blockers}
    assert "model" not in checked(launch.replace("gpt_oss_20b", "house_model")).contract.fields


def test_of_several_warnings_that_one_flag_resolves_the_first_is_given() -> None:
    launch = SCRIPT.replace("FLAGS", "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep")
    changes = [dict(item.set) for item in checked(launch).warnings]
    assert changes.count({"router_dtype": "fp32"}) == 1
    assert {"prec-router", "disp-probs-fp32"} <= {item.rule.id for item in checked(launch).evaluation.warnings}


def test_an_unreadable_launch_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="No command with training flags"):
        checked("hello world")


@pytest.mark.parametrize(
    ("script", "expanded"),
    [
        ("A=1\nrun --x $A ${A} ${B:-2} $C", "run --x 1 1 2 $C"),
        ("A='$B'\nrun '$A' \"$A\"", "run '$A' \"$B\""),
        ("A=2\nB=$((A * 3 + 1))\nrun $B", "run 7"),
        ("A=x\nA+=y\nrun $A", "run xy"),
        ("B=1\nX=1 run --b $B", "X=1 run --b 1"),
    ],
)
def test_shell_words(script: str, expanded: str) -> None:
    assert expand(script).splitlines()[-1] == expanded


def test_the_size_of_a_script_is_bounded() -> None:
    text = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "run $A"
    assert len(expand(text)) < 4_000_000


def test_the_commands_of_rules_have_only_flags_of_megatron_lm() -> None:
    """A misspelt flag is added to each, because the check tells the flags of Megatron-LM from those of a script."""
    recipes = [recipe.run for rule in built_in_rules().rules.values() for recipe in rule.change.recipes]
    commands = [command for command in recipes if "pretrain_gpt.py" in command]
    assert len(commands) > 10
    for command in commands:
        launch = re.sub(r"<[^>]*>|\{\w+\}", "1", command).replace(".py", ".py --micro-bach-size 1")
        assert checked(launch).wrong_flags == {"micro-bach-size"}, command
