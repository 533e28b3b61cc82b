"""Fine-tuning and evaluation: a task's files -> labelled rows -> batches; logits -> answers -> metrics.

settings and specs say what a task is; tables, glue, conll, squad and race read it; rows encodes it; batches feeds it;
predict turns logits into answers; metrics, entities and squad score them. No torch here: the network is handed in.
"""
