"""The quickstart: from a folder of text to a pretrained, fine-tuned, exported model with a report."""
