"""pack_padded_sequence around an LSTM."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 8, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(16, 5)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (h, _) = self.rnn(packed)
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=ids.shape[1])
        return self.fc(torch.cat([h[0], h[1]], 1) + padded.mean(1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (8,), generator=g)
    return (torch.randint(0, 11, (8, 6), generator=g), lengths), torch.randint(0, 5, (8,), generator=g)


EXPECT = "either"
REASON = "pack|data-dependent|value"
