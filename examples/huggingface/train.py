"""A Hugging Face Trainer script, as people have it, with one callback more: a tiny GPT-2 on generated text, on CPUs."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from kuangchao_worker import report
from kuangchao_worker.integrations.huggingface import ReportCallback

VOCABULARY, LENGTH = 64, 16


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards from anywhere, modulo the vocabulary."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) + index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    output = report.checkpoint_directory() or Path("huggingface-output")
    output.mkdir(parents=True, exist_ok=True)
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=5,
        save_steps=10,
        save_total_limit=2,
        use_cpu=True,
        report_to="none",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        seed=7,
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=[ReportCallback()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(output)))


if __name__ == "__main__":
    main()
