"""The Trainer of transformers, as on one process: the same steps, the same weights."""

import os

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    """A layer with its loss, as a Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


random = torch.Generator().manual_seed(0)
inputs = torch.randn(64, 8, generator=random)
targets = inputs @ torch.randn(8, 1, generator=random)
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=64 // int(os.environ["WORLD_SIZE"]),
    num_train_epochs=5, learning_rate=0.1, optim="sgd", lr_scheduler_type="constant",
    max_grad_norm=0, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
)  # fmt: skip
rows = [{"x": x, "labels": y} for x, y in zip(inputs, targets, strict=True)]
trainer = Trainer(model=Model(), args=arguments, train_dataset=rows)
trainer.train()
assert arguments.world_size == int(os.environ["WORLD_SIZE"])
learned = [f"{each:.4f}" for each in trainer.model.layer.weight[0].tolist()]
print(f"{arguments.world_size} ranks learned", *learned, flush=True)
