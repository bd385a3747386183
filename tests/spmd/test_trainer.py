"""The Trainer of `transformers` with FSDPv2 trains on four devices as on the CPU, unmodified.

`make test-all` installs the packages; TRAINER_PACKAGES_PATH names the folder. From 5.3 on
`transformers` wraps the model for torch_xla but makes no optimizer then, so an older one is taken.
"""

from __future__ import annotations

import json
import os

import pytest
import torch

PACKAGES = os.environ.get("TRAINER_PACKAGES_PATH")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PACKAGES,
        reason="TRAINER_PACKAGES_PATH names no folder with accelerate and transformers. "
        "`make test-all` installs them.",
    ),
]

PROGRAM = """
import json, os, torch

if on_xla:
    import torch_xla, torch_xla.runtime as xr
    xr.use_spmd()
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied)
tokens = torch.randint(64, (40, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": t, "labels": t, "attention_mask": torch.ones_like(t)} for t in tokens]
where = {"use_cpu": True}
if on_xla:
    fsdp = {"xla": True, "xla_fsdp_v2": True, "xla_fsdp_grad_ckpt": checkpointed}
    where = {"fsdp": "full_shard", "fsdp_config": fsdp}
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=batch, per_device_eval_batch_size=8,
    gradient_accumulation_steps=accumulated, max_steps=6, learning_rate=1e-2, max_grad_norm=0.5,
    logging_steps=1, save_strategy="steps", save_steps=3, seed=3, report_to=[], **where)

def train(**how):
    torch.manual_seed(0)
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data)
    trainer.train(**how)
    return trainer

def told(trainer):
    steps = [line for line in trainer.state.log_history if "loss" in line]
    return {"losses": [line["loss"] for line in steps],
            "norms": [line["grad_norm"] for line in steps],
            "evaluated": trainer.evaluate(data[:16])["eval_loss"],
            "predicted": trainer.predict(data[:16]).predictions.tolist()}

trainer = train()
found = told(trainer)
trainer.save_model("saved")
if on_xla:
    for name, p in trainer.model_wrapped.named_parameters():
        spec = torch_xla._XLAC._get_xla_sharding_spec(p)
        assert "devices=" in spec and "replicate" not in spec, (name, spec)
    # Saved as the plain model, which loads it.
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(torch.load("saved/pytorch_model.bin"))
else:
    plain = LlamaForCausalLM.from_pretrained("saved")
with torch.no_grad():
    found["saved"] = plain(tokens[:16]).logits.tolist()
if resumed:
    found["resumed"] = told(train(resume_from_checkpoint="out/checkpoint-3"))
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    "batch, accumulated, tied, checkpointed, resumed",
    [(8, 1, False, True, True), (6, 2, True, False, False)],
    ids=["checkpointed", "accumulated"],
)
def test_the_trainer(run_python, batch, accumulated, tied, checkpointed, resumed):
    options = locals()
    given = "".join(f"{key} = {value!r}\n" for key, value in options.items() if key != "run_python")

    def run(on_xla, env):
        path = os.pathsep.join([PACKAGES, os.environ["PYTHONPATH"]])
        program = f"on_xla = {on_xla}\n{given}{PROGRAM}"
        done = run_python(program, env={"PYTHONPATH": path, **env})
        return json.loads(done.stdout.splitlines()[-1])

    want = run(False, {"USE_TORCH_XLA": "0"})
    got = run(True, {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"})
    assert len(got["losses"]) == 6 and got["losses"][-1] < got["losses"][0]

    def check(got, want):
        assert set(got) == set(want)
        for key in set(want) - {"resumed"}:
            torch.testing.assert_close(
                torch.tensor(got[key]), torch.tensor(want[key]), rtol=1e-3, atol=1e-4, msg=key
            )

    check(got, want)
    if resumed:
        check(got["resumed"], want["resumed"])
