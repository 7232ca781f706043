"""nn.TransformerEncoder with a causal mask and padding, no dropout."""

import torch
from torch import nn

from tests.models_of_people.data import tokens


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 5)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]).bool()
        h = self.encoder(self.embed(ids), mask=mask, src_key_padding_mask=torch.zeros_like(ids).bool())
        return self.fc(h[:, -1])


batch = tokens()
