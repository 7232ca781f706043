"""Layers of LSTM: GNMT, which translates, and RNNLM, which scores the next token of a text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from netsplit.models.sizes import check_even, check_fraction, check_least

__all__ = ["gnmt", "rnnlm"]


class AdditiveAttention(nn.Module):
    """Queries (n, t, width) read memory (n, s, width): (n, t, width). Bahdanau et al., ICLR 2015."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, queries: Tensor, memory: Tensor) -> Tensor:
        hidden = torch.tanh(self.query(queries).unsqueeze(2) + self.key(memory).unsqueeze(1))
        return torch.matmul(self.score(hidden).squeeze(3).softmax(2), memory)


class GNMT(nn.Module):
    """Source (n, s) and target (n, t) tokens, int64 -> scores (n, vocabulary, t) of the next of the target.

    source -> embedding -> LSTM both ways -> LSTM -> ... -> LSTM ────┐ read
    target -> embedding -> LSTM ────────────────────────────► attention
                             └─► with what it attends to -> LSTM -> ... -> LSTM -> scores

    Without a target, the source is also the target.
    """

    def __init__(self, *, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.both_ways = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.encoder = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers - 1))
        self.attending = nn.LSTM(width, width, batch_first=True)
        self.attention = AdditiveAttention(width)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.scores = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.04, 0.04)

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        x = self.both_ways(self.dropout(self.source(source)))[0]
        for i, layer in enumerate(self.encoder):
            out = layer(self.dropout(x))[0]
            x = x + out if i else out
        y = self.attending(self.dropout(self.target(source if target is None else target)))[0]
        attended = self.attention(y, x)
        for i, layer in enumerate(self.decoder):
            out = layer(self.dropout(torch.cat([y, attended], 2)))[0]
            y = y + out if i else out
        return self.scores(y).transpose(1, 2)


def gnmt(vocabulary: int = 32000, width: int = 1024, layers: int = 8, dropout: float = 0.2) -> nn.Module:
    """GNMT.

    Wu et al., "Google's Neural Machine Translation System", 2016. Attention uses the decoder's first layer at
    the same step (the paper: at the step before), so that each layer runs over all steps at once, as in
    common implementations. From the third on, layers have residual connections.

    Args:
        vocabulary: number of different tokens, of both languages together.
        width: features of a token and of every layer's state; even, as the first layer is bidirectional.
        layers: LSTM layers in the encoder, and in the decoder; 2 or more.
        dropout: probability before every layer.
    """
    check_least(1, vocabulary=vocabulary)
    check_least(2, layers=layers)
    check_even(width=width)
    check_fraction(dropout=dropout)
    return GNMT(vocabulary=vocabulary, width=width, layers=layers, dropout=dropout)


class RNNLM(nn.Module):
    """Tokens (n, t), int64 -> scores (n, vocabulary, t) of the next ones."""

    def __init__(self, *, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.scores = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.04, 0.04)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.tokens(tokens))
        for layer in self.layers:
            x = self.dropout(layer(x)[0])
        return self.scores(x).transpose(1, 2)


def rnnlm(vocabulary: int = 10000, width: int = 1500, layers: int = 2, dropout: float = 0.65) -> nn.Module:
    """RNNLM, by default the large one.

    Zaremba, Sutskever and Vinyals, "Recurrent Neural Network Regularization", 2014. Every sample begins with
    a state of zeros; the paper carries the state over to the next piece of text.

    Args:
        width: features of a token and of every layer's state.
        dropout: probability before and after every layer.
    """
    check_least(1, vocabulary=vocabulary, width=width, layers=layers)
    check_fraction(dropout=dropout)
    return RNNLM(vocabulary=vocabulary, width=width, layers=layers, dropout=dropout)
