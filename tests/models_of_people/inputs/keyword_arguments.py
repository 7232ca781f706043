"""Keyword arguments, in the form of tokenisers: model(**batch), the loss inside."""

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.fc = nn.Linear(8, 3)

    def forward(self, input_ids=None, attention_mask=None, labels=None, return_dict=True):
        h = self.embed(input_ids) * attention_mask.unsqueeze(-1)
        pooled = h.sum(1) / attention_mask.sum(1, keepdim=True).clamp(min=1)
        logits = self.fc(pooled)
        value = F.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": value, "logits": logits} if return_dict else (value, logits)


loss = None


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (8, 6), generator=g)
    mask = (torch.arange(6) < torch.randint(1, 7, (8, 1), generator=g)).long()
    labels = torch.randint(0, 3, (8,), generator=g)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}, None
