"""Fine-tuning: a pretrained model and labelled examples -> models that answer, over seeds, tasks and recipes."""
