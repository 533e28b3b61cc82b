"""How a model is trained: budget, optimizer, schedule, precision, and when to save, evaluate and log.

Comes from the `train:` part of a run file. The defaults are the recipe of RoBERTa's paper (section 3.1 and table 9)
where it has one. Not here: what is learned (objectives), from what (data/), and by which network (model/).
"""

from __future__ import annotations

from typing import Literal

from remask.config import Config, setting, switch

Precision = Literal["auto", "fp32", "bf16", "fp16"]

RANK_TIMEOUT_SECONDS = 600.0


class TrainSettings(Config):
    """Everything the loop reads. Of several budgets the one that ends first counts."""

    # How long.
    steps: int | None = setting(None, "Budget in optimizer steps; 0: measure and save the start itself.", ge=0)
    tokens: int | None = setting(None, "Budget in tokens read (without padding).", ge=1)
    epochs: float | None = setting(None, "Budget in passes over the data.", gt=0)
    minutes: float | None = setting(
        None, "Budget in minutes: a probe turns it into steps, and the clock corrects them 20 times.", gt=0
    )

    # Optimizer and schedule.
    optimizer: Literal["adamw", "lamb", "muon"] = switch(
        "adamw",
        "AdamW; LAMB (layer-wise trust ratio); Muon for the hidden matrices with AdamW for the rest.",
        effect="math",
    )
    learning_rate: float = switch(6e-4, "Peak learning rate.", effect="math", samples=[1e-4, 1e-3], gt=0)
    schedule: Literal["linear", "cosine", "stable"] = switch(
        "linear",
        "After the warmup: linear decay, half a cosine, or stable and a linear decay at the end.",
        effect="math",
    )
    warmup: float = switch(
        0.048,
        "Linear warmup: under 1 a share of all steps, else a number of steps.",
        effect="math",
        samples=[0.0, 0.06, 0.2],
        ge=0,
    )
    decay: float = switch(
        0.2, "Share of all steps that the `stable` schedule decays in.", effect="math", samples=[0.1, 0.4], gt=0, le=1
    )
    final_lr_fraction: float = switch(
        0.0, "Learning rate at the end, as a share of the peak.", effect="math", samples=[0.1], ge=0, le=1
    )
    beta1: float = switch(
        0.9, "Decay of the gradient's mean; Muon's momentum too.", effect="math", samples=[0.95], ge=0, lt=1
    )
    beta2: float = switch(
        0.98, "Decay of the squared gradient's mean.", effect="math", samples=[0.95, 0.999], ge=0, lt=1
    )
    epsilon: float = switch(1e-6, "Adam's epsilon.", effect="math", samples=[1e-8], gt=0)
    weight_decay: float = switch(
        0.01, "Decoupled weight decay, none on biases and norms.", effect="math", samples=[0.0, 0.1], ge=0
    )
    clip: float = switch(
        0.0, "Largest gradient norm; 0 does not clip (as in RoBERTa).", effect="math", samples=[1.0], ge=0
    )
    ema_decay: float = switch(
        0.0,
        "Exponential average of the weights, evaluated and saved as the model; 0 keeps none.",
        effect="math",
        samples=[0.99],
        ge=0,
        lt=1,
    )
    trainable_top_layers: int | None = switch(
        None, "Only this many of the top layers (and the heads) learn; null: all.", effect="math", samples=[1], ge=0
    )
    layer_decay: float = switch(
        1.0,
        "Every layer's learning rate as a share of that of the layer above it; 1: all alike.",
        effect="math",
        samples=[0.8],
        gt=0,
        le=1,
    )

    # How it is computed.
    precision: Precision = switch(
        "auto", "Of products; weights learn in fp32. auto: bf16 where the hardware has it and it works.", effect="speed"
    )
    weights: Literal["fp32", "bf16-master"] = switch(
        "fp32",
        "With precision bf16: weights cast for every micro-batch, or bf16 copies of fp32 masters made once a step.",
        effect="speed",
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps.")
    compile: bool = switch(
        False, "torch.compile the layers: on GPUs whole, on CPUs the inside of the FFNs.", effect="speed"
    )
    activation_checkpointing: bool = switch(
        False, "Recompute layers in the backward pass: less memory.", effect="speed"
    )
    parallel: Literal["ddp", "fsdp"] = switch(
        "ddp",
        "Under torchrun: every rank has the whole model, or (FSDP2) some rows of every weight and of its state.",
        effect="speed",
    )
    overlap: bool = switch(
        True, "Under torchrun with ddp: sum gradients during a step's last backward pass, or after it.", effect="speed"
    )
    prefetch: bool = switch(True, "Make the next batch in a thread while this one is computed.", effect="speed")

    # When to look, and what to keep.
    save_every: int | None = setting(
        None, "Steps between checkpoints; 0: only the last; null: ten in a run, at most 1,000.", ge=0
    )
    eval_every: int | None = setting(None, "Steps between evaluations; 0: only the last; null: twenty in a run.", ge=0)
    log_every: int = setting(10, "Steps between lines in metrics.jsonl.", ge=1)
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = setting(
        (), "Tools that get the lines of metrics.jsonl too, under OUT/trackers; each is an extra."
    )
    keep_checkpoints: int = setting(2, "Verified checkpoints that are kept.", ge=1)

    # Faults.
    spike_sigmas: float = switch(
        4.5,
        "Skip an update whose loss stands this many robust deviations above the trend; 0: never.",
        effect="math",
        samples=[0.0],
        ge=0,
    )
    rank_timeout_seconds: float = setting(
        RANK_TIMEOUT_SECONDS,
        "Under torchrun: a rank that others wait for this long ends the job; longer than a save or an evaluation.",
        gt=0,
    )
    batch_timeout_seconds: float = setting(600.0, "A batch that takes longer to make ends the run.", gt=0)
    max_bad_steps: int = setting(3, "Bad steps in a row before going back to the last checkpoint.", ge=1)
    max_rollbacks: int = setting(3, "Times to go back before giving up.", ge=1)
