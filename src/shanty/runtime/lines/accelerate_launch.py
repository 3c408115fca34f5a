"""Reads a line for `accelerate launch`, with its configuration file.

The settings of the line reach the script by the variables that Accelerate sets itself. The options
are those of Accelerate 1.15.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Union

from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.lines.option_table import NUMBER, SWITCH, TEXT, WHOLE, Given, one_of
from shanty.runtime.lines.process_line import (
    ALL_HOSTS,
    ITSELF,
    OUTPUT,
    RETRIES,
    Count,
    ProcessLine,
    spelled_both_ways,
)
from shanty.runtime.lines.settings_file import read_settings
from shanty.runtime.mpi.hostfiles import Read
from shanty.runtime.suggestions import nearest, place

_TPU = "!ranks of a run do not use TPUs|leave it out"
_AWS = "!a run goes to hosts by ssh, not to SageMaker|name the hosts: shanty run --on HOST,HOST …"
_FILTER = "-ranks go to all hosts of the run"
_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_UNSET = ""


class Family(NamedTuple):
    """Options for one way of training: `--OPTION_NAME value` becomes the variable VARIABLE_NAME.

    `names` are the options with Accelerate's defaults; _UNSET: the variable is not set.
    """

    switch: str  # the variable that says that this is the way
    option: str
    variable: str
    names: Dict[str, str]


def _named(unset: str, **names: str) -> Dict[str, str]:
    return {**names, **dict.fromkeys(unset.split(), _UNSET)}


FAMILIES = {
    "fsdp": Family(
        "ACCELERATE_USE_FSDP", "fsdp_", "FSDP_",
        _named(
            "auto_wrap_policy transformer_layer_cls_to_wrap backward_prefetch state_dict_type "
            "ignored_modules",
            version="1", sharding_strategy="FULL_SHARD", reshard_after_forward="true",
            offload_params="false", min_num_params="100000000", forward_prefetch="false",
            use_orig_params="true", cpu_ram_efficient_loading="true", sync_module_states="true",
            activation_checkpointing="false", activation_checkpointing_offload="false",
        ),
    ),
    "megatron_lm": Family(
        "ACCELERATE_USE_MEGATRON_LM", "megatron_lm_", "MEGATRON_LM_",
        _named(
            "decoder_last_pipeline_num_layers num_micro_batches sequence_parallelism "
            "recompute_activations use_distributed_optimizer recompute_granularity "
            "recompute_method recompute_num_layers attention_backend expert_model_parallel_size "
            "context_parallel_size attention_dropout hidden_dropout attention_softmax_in_fp32 "
            "expert_tensor_parallel_size calculate_per_token_loss use_rotary_position_embeddings",
            tp_degree="1", use_custom_fsdp="False", no_load_optim="False", eod_mask_loss="False",
            no_save_optim="False", optimizer_cpu_offload="False", pp_degree="1",
            use_precision_aware_optimizer="False", overlap_cpu_optimizer_d2h_h2d="False",
            gradient_clipping="1.0",
        ),
    ),
    "parallelism_config": Family(
        "ACCELERATE_USE_PARALLELISM_CONFIG", "parallelism_config_", "PARALLELISM_CONFIG_",
        _named(
            "cp_comm_strategy sp_seq_length sp_seq_length_is_variable sp_attn_implementation",
            dp_replicate_size="1", dp_shard_size="1", tp_size="1", cp_size="1",
            cp_backend="torch", sp_size="1", sp_backend="deepspeed",
        ),
    ),
    "fp8": Family(
        "", "fp8_", "ACCELERATE_FP8_",
        _named(
            "backend override_linear_precision",
            use_autocast_during_eval="False", margin="0", interval="1", format="HYBRID",
            amax_history_len="1024", amax_compute_algo="most_recent", opt_level="O2",
            enable_fsdp_float8_all_gather="True", pad_inner_dim="True",
        ),
    ),
    "deepspeed": Family(
        "ACCELERATE_USE_DEEPSPEED", "", "ACCELERATE_DEEPSPEED_",
        _named(
            "zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path "
            "offload_param_nvme_path gradient_accumulation_steps gradient_clipping "
            "zero3_init_flag zero3_save_16bit_model deepspeed_config_file "
            "deepspeed_moe_layer_cls_names",
        ),
    ),
}  # fmt: skip
# Options whose variables are not named after them.
_VARIABLES = {
    "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
_AS_WRITTEN = ("ACCELERATE_FP8_", "MEGATRON_LM_", "PARALLELISM_CONFIG_")
_LOWER = ("reshard_after_forward", "offload_optimizer_device", "offload_param_device")
_SWITCHES = ("use_autocast_during_eval",)

OPTIONS = spelled_both_ways(
    ("--config_file", TEXT, "@config"),
    # How many and where
    ("--num_processes", WHOLE, "@count processes"),
    ("--num_machines", TEXT, "@nodes"),
    ("--gpu_ids", TEXT, "@gpu-ids"),
    ("--machine_rank", WHOLE, ALL_HOSTS),
    ("--mpirun_hostfile / --deepspeed_hostfile", TEXT, "@set hostfile"),
    ("--deepspeed_exclusion_filter / --deepspeed_inclusion_filter", TEXT, _FILTER),
    ("--num_cpu_threads_per_process", WHOLE, "=OMP_NUM_THREADS"),
    ("--enable_cpu_affinity", SWITCH, "=ACCELERATE_CPU_AFFINITY 1"),
    # How they find each other
    ("--main_process_ip / --rdzv_backend / --rdzv_conf", TEXT, ITSELF),
    ("--main_process_port", WHOLE, ITSELF),
    ("--same_network", SWITCH, ""),
    ("--deepspeed_multinode_launcher", TEXT, "-the run has its own launcher"),
    # The way of training
    ("--cpu / --multi_gpu / --use_deepspeed / --use_fsdp / --use_megatron_lm", SWITCH, "@way"),
    ("--use_parallelism_config", SWITCH, "@way"),
    ("--mixed_precision / --dynamo_backend / --dynamo_mode", TEXT, "@setting"),
    ("--dynamo_use_fullgraph / --dynamo_use_dynamic", SWITCH, "@setting"),
    ("--dynamo_use_regional_compilation", SWITCH, "@setting"),
    *(
        (f"--{each.option}{name}", SWITCH if name in _SWITCHES else TEXT, "@setting")
        for each in FAMILIES.values()
        for name in each.names
    ),
    ("--debug", SWITCH, "=ACCELERATE_DEBUG_MODE true"),
    # What they run, and how that is watched
    ("-m --module", SWITCH, "@switch module"),
    ("--no_python", SWITCH, "@switch no_python"),
    ("--role", TEXT, "=ROLE_NAME"),
    ("--max_restarts", WHOLE, RETRIES),
    ("--monitor_interval", NUMBER, "-a run notices at once that a rank has ended"),
    ("-t --tee / --log_dir", TEXT, OUTPUT),
    ("-q --quiet", SWITCH, ""),
    ("-h --help", SWITCH, "@ask help"),
    # Elsewhere
    ("--tpu / --tpu_cluster / --tpu_use_sudo", SWITCH, _TPU),
    ("--vm / --env", TEXT, _TPU),
    ("--no_tpu_cluster / --downcast_bf16", SWITCH, ""),
    ("--main_training_function", TEXT, ""),
    ("--aws_access_key_id / --aws_secret_access_key", TEXT, _AWS),
)

# ----------------------------------------------------------------------- the configuration file

_WAYS = {
    "NO": "", "MULTI_CPU": "cpu", "MULTI_GPU": "multi_gpu", "FSDP": "use_fsdp",
    "DEEPSPEED": "use_deepspeed", "MEGATRON_LM": "use_megatron_lm",
}  # fmt: skip
# Settings of a file without a meaning here: how processes find each other, and TPUs.
_IGNORED = frozenset((
    "compute_environment", "distributed_type", "machine_rank", "main_process_ip",
    "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster",
    "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env",
    "deepspeed_multinode_launcher", "mpirun_ccl",
))  # fmt: skip


@dataclass
class Wanted(ProcessLine):
    """A line of `accelerate launch`, and what it asks for."""

    program = "accelerate launch"
    options = OPTIONS
    says_number = "--num_processes"
    says_hosts = "--num_machines"

    default: Union[int, str] = "some"
    ways: List[str] = field(default_factory=list)
    settings: Dict[str, str] = field(default_factory=dict)
    usual_processes: Optional[int] = None  # of the configuration file
    fields: List[str] = field(default_factory=list)  # for DeepSpeed, of the configuration file

    def count(self, hosts: Optional[int], slots: int, own: Optional[int]) -> Count:
        """Works out the number of ranks; the run's own number wins over a file."""
        if self.processes is None and own is None:
            self.processes = self.usual_processes
        return super().count(hosts, slots, own)

    def completed(self, given: List[Given]) -> List[Given]:
        """Takes the configuration file; the options of the line win over it."""
        files = [value for _, option, value in given if option.rule == "@config"]
        usual = _usual_file(self.environ)
        ways = {said for said, option, _ in given if option.rule == "@way"}
        if files:
            self.take_file(files[-1])
        elif "--cpu" not in ways and self.read(usual) is not None:
            self.take_file(usual)
        if ways - {"--use_parallelism_config", "--use-parallelism-config"}:
            self.ways.clear()
        return given

    def _way(self, spelled: str, _: str, __: str) -> None:
        self.ways.append(spelled[2:].replace("-", "_"))

    def _setting(self, spelled: str, value: str, _: str) -> None:
        self.settings[spelled[2:].replace("-", "_")] = value or "True"

    def _gpu_ids(self, spelled: str, value: str, _: str) -> None:
        if value == "all":
            return
        ids = value.split(",")
        if not all(each.strip().isdigit() for each in ids):
            raise UsageError(f"{spelled} takes numbers with commas, or all, not {value!r}")
        self.variables["CUDA_VISIBLE_DEVICES"] = ",".join(each.strip() for each in ids)
        self.per_node = len(ids)

    def take_file(self, path: str) -> None:
        """Takes the configuration file, before the options of the line."""
        found = _settings(path, self.read)
        if str(found.get("compute_environment") or "LOCAL_MACHINE") != "LOCAL_MACHINE":
            raise UsageError(f"{path} is for {found['compute_environment']}", *_AWS[1:].split("|"))
        kind = str(found.get("distributed_type") or "NO")
        if kind not in _WAYS and not kind.startswith("MULTI_"):
            raise UsageError(f"{path} is for {kind}, which a run cannot use", fix="name another")
        self.ways = [_WAYS.get(kind, "multi_gpu")] if _WAYS.get(kind, "multi_gpu") else []
        for key, value in found.items():
            if value is None or key in _IGNORED:
                continue
            text = str(value)
            if key == "use_cpu":
                self.ways += ["cpu"] if value is True else []
                continue
            option = OPTIONS[f"--{key}"]
            if key == "num_processes":
                option.check(f"{key} in {path}", [text])
                self.usual_processes = int(text) or None
            elif option.rule == "@setting":
                self.settings[key] = "no" if value is False and key == "mixed_precision" else text
            elif value is not False and (key, text) != ("num_machines", "1"):  # in every file
                spelled = f"--{key}" if option.rule == "@way" else f"{key} in {path}"
                self.take(spelled, option, "" if value is True else text)
        for_deepspeed = {**FAMILIES["deepspeed"].names, "mixed_precision": _UNSET}
        self.fields = [key for key in found if key in for_deepspeed]
        self.remarks.append(f"{path} is the configuration of this accelerate launch line")

    def checked(self) -> None:
        """Works out what the options mean together; UsageError where that makes no sense."""
        super().checked()
        chosen = [way for way in dict.fromkeys(self.ways) if way != "use_parallelism_config"]
        if len(chosen) > 1:
            named = " and ".join(f"--{way}" for way in chosen)
            raise UsageError(f"{named} of accelerate launch exclude each other", fix="take one")
        precision = self.settings.get("mixed_precision", "no")
        one_of("--mixed_precision", precision, _PRECISIONS)
        self.variables = {
            **self._variables(chosen[0] if chosen else "", precision),
            **self.variables,
        }

    def _variables(self, way: str, precision: str) -> Dict[str, str]:
        found = {"ACCELERATE_MIXED_PRECISION": precision}
        if way == "cpu":
            found["ACCELERATE_USE_CPU"] = "True"
            found["KMP_AFFINITY"] = "granularity=fine,compact,1,0"
            found["KMP_BLOCKTIME"] = "1"
        if way != "use_deepspeed":
            says = self.settings.get
            found["ACCELERATE_DYNAMO_BACKEND"] = says("dynamo_backend", "no").upper()
            found["ACCELERATE_DYNAMO_MODE"] = says("dynamo_mode", "default")
            for name in ("use_fullgraph", "use_dynamic", "use_regional_compilation"):
                found[f"ACCELERATE_DYNAMO_{name.upper()}"] = says(f"dynamo_{name}", "False")
        families = [way[4:]] if way.startswith("use_") else []
        families += ["fp8"] if precision == "fp8" else []
        families += ["parallelism_config"] if "use_parallelism_config" in self.ways else []
        for name in families:
            found.update(self._of_family(FAMILIES[name]))
        if "deepspeed" in families:
            found["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(self.fields)
        return found

    def _of_family(self, family: Family) -> Dict[str, str]:
        found = {family.switch: "true"} if family.switch else {}
        for name, usual in family.names.items():
            option = family.option + name
            value = self.settings.get(option, usual)
            variable = _VARIABLES.get(option, f"{family.variable}{name}".upper())
            if option == "fp8_override_linear_precision":
                three = (value or "False,False,False").strip("()").split(",")
                for part, each in zip(("FPROP", "DGRAD", "WGRAD"), three):
                    found[f"ACCELERATE_FP8_OVERRIDE_{part}"] = each.strip().capitalize()
            elif value != _UNSET:
                lower = value.lower() in ("true", "false") or name in _LOWER
                written = variable.startswith(_AS_WRITTEN) or not lower
                found[variable] = value if written else value.lower()
        return found


def _settings(path: str, read: Read) -> Dict[str, Any]:
    """Returns the settings in a configuration file, by the names of the options."""
    text = read(path)
    if text is None:
        raise NotFoundError(f"--config_file {path}: file not found")
    if path.endswith(".json"):
        try:
            content = json.loads(text)
            flat = {
                (f"{key}.{inner}" if inner else key): each
                for key, value in content.items()
                for inner, each in (value.items() if isinstance(value, dict) else [("", value)])
            }
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{path} cannot be read", str(error)) from None
    else:
        flat = dict(read_settings(text, path))
    found: Dict[str, Any] = {}
    for key, value in flat.items():
        name = _option_name(key)
        if key.endswith("_config") and value is None:
            continue  # the head of a section
        if name not in _IGNORED and name != "use_cpu" and f"--{name}" not in OPTIONS:
            fix = nearest(name, (each[2:] for each in OPTIONS), "leave it out")
            line = place(path, text, key.rpartition(".")[2])
            raise UsageError(f"{line}: accelerate has no setting {key}", fix=fix)
        found[name] = value
    return found


def _option_name(key: str) -> str:
    """Returns the option that a key in a file stands for: fsdp_config.version is fsdp_version."""
    section, dot, name = key.partition(".")
    if not dot:
        return section
    kind = section[: -len("_config")] if section.endswith("_config") else section
    if kind in ("fsdp", "fp8", "dynamo") and not name.startswith(kind):
        return f"{kind}_{name}"
    return name


def _usual_file(environ: Mapping[str, str]) -> str:
    """Returns the path of the file that `accelerate config` writes."""
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    folder = environ.get("HF_HOME") or f"{cache}/huggingface"
    return os.path.expanduser(f"{folder}/accelerate/default_config.yaml")
