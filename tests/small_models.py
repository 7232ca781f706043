"""Tiny modules, each with something that a split must not break; `tests.nets` makes cases of them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "Assigned",
    "Attention",
    "Cells",
    "Chain",
    "Constants",
    "Drawing",
    "Dropped",
    "Fan",
    "InPlace",
    "SharedNorm",
    "Tied",
    "TwoHeads",
    "TwoHeadsLoss",
    "TwoInputs",
    "UShape",
    "stages",
]


class Chain(nn.Module):
    """Convolution, BatchNorm, in-place ReLU, view, linear: one path."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 4, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.relu(self.norm2(self.conv2(x)), inplace=True)
        return self.head(x.view(x.shape[0], -1))


class Cells(nn.Module):
    """Every cell feeds the next two, as in AmoebaNet; sums of three and a split."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.left = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.right = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        older = newer = self.stem(x)
        for left, right, norm in zip(self.left, self.right, self.norms, strict=True):
            made = norm(F.relu(left(newer)) + right(older) + newer)
            made += older
            older, newer = newer, made
        first, second = torch.chunk(torch.cat([older, newer], 1), 2, dim=1)
        return self.head(torch.cat([second.mean((2, 3)), first.amax((2, 3))], 1))


class UShape(nn.Module):
    """Two levels down and up again; what each level finds on the way down is read on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(6)])
        self.bottom = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.ModuleList([nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)])
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for conv, norm in zip(self.down, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for conv in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = torch.tanh(conv(torch.cat([x, skips.pop()], 1)))
        return self.head(x.mean((2, 3)))


class Tied(nn.Module):
    """One weight used twice, far apart, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 12)
        self.middle = nn.Linear(12, 12)
        self.outward = nn.Linear(12, 12, bias=False)
        self.outward.weight = self.inward.weight
        self.scale = nn.Parameter(torch.full((12,), 1.5), requires_grad=False)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inward(x))
        x = torch.sigmoid(self.middle(x * self.scale)) + x
        return self.head(self.outward(x))


class TwoInputs(nn.Module):
    """Two inputs, one of them used at both ends, and an integer path without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        looked_up = self.embed((index + 1) % 7)
        mixed = F.gelu(self.mix(x)) * looked_up
        weight = (index > 3).to(x.dtype).unsqueeze(1)
        return self.head(torch.cat([mixed, x * weight], 1))


class TwoHeads(nn.Module):
    """Several outputs: class scores, a reconstruction, the input itself, and the code behind both heads."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 8)
        self.classes = nn.Linear(8, 5)
        self.again = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        code = torch.tanh(self.inward(x))
        return self.classes(code), self.again(code), x, code


class TwoHeadsLoss(nn.Module):
    """Losses of both heads; the class scores are read by two of them, the code by one of its own."""

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        scores, again, x, code = outputs
        likely = F.cross_entropy(scores, targets) + 0.02 * torch.logsumexp(scores, 1).mean()
        return likely + 0.1 * F.mse_loss(again, x) + 0.05 * code.abs().mean()


class Fan(nn.Module):
    """One activation feeds three later pieces, which are far apart and feed each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 8)
        self.pieces = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        shared = torch.tanh(self.inward(x))
        y = shared
        for piece in self.pieces:
            y = torch.sigmoid(piece(y)) * shared
        return self.head(y)


class Attention(nn.Module):
    """A transformer block over five tokens: positions, attention, residuals, layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.linspace(-1, 1, 40).view(5, 8))
        self.norm1 = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.project = nn.Linear(8, 8)
        self.norm2 = nn.LayerNorm(8)
        self.widen = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        heads = self.qkv(self.norm1(x)).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        x = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return self.head(x.mean(1))


class InPlace(nn.Module):
    """Writes into tensors, into a part of one through a view, and into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x).clamp_(-2, 2)
        self.seen.add_(x.detach().mean(0)).mul_(0.9)
        y = self.middle(x * 1.0)
        y[:, :3].mul_(2.0)
        y[:, 5:] += x[:, :3]
        return self.head(torch.sigmoid_(y * x))


class SharedNorm(nn.Module):
    """One BatchNorm used three times: its running statistics have an order."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 8)
        self.norm = nn.BatchNorm1d(8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.inward(x))
        for _ in range(2):
            x = torch.relu(self.norm(self.middle(x))) + x
        return self.head(x)


class Constants(nn.Module):
    """Tensors that are neither parameter nor buffer: an attribute and a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 5)
        self.shift = torch.arange(5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
        return torch.tanh(self.inward(x).double() + self.shift) * scale


class Assigned(nn.Module):
    """Buffers that are assigned rather than written, and a branch that does not reach the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 8)
        self.idle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        centred = x - self.mean
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        hidden = torch.tanh(self.inward(centred))
        idle = torch.relu(self.idle(hidden)).detach()
        return self.head(hidden + 0.1 * idle)


class Dropped(nn.Module):
    """Random numbers at three places, and BatchNorm: what training and evaluation do differently."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(12, 16)
        self.norm = nn.BatchNorm1d(16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.norm(self.inward(x)), 0.3, self.training)
        x = F.dropout(torch.tanh(self.middle(x)), 0.5, self.training) + x
        return self.head(F.dropout(x, 0.1, self.training))


class Drawing(nn.Module):
    """Draws in many ways: within attention and a recurrence, in place, on transposed tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.recurrent(x)[0]
        x = x + self.attention(x, x, x)[0]
        x = self.block(x).transpose(1, 2)
        x = F.dropout(torch.tanh(x), 0.3, self.training) + 0.1 * torch.randn_like(x)
        x = x * torch.empty_like(x).bernoulli_(0.8)
        x = F.dropout(F.rrelu(x, training=self.training) + x, 0.2, self.training, inplace=True)
        x = F.dropout(F.dropout(x, 0.0, self.training), 0.5, False)
        return self.head(F.alpha_dropout(x, 0.1, self.training).mean(2))


def stages() -> nn.Sequential:
    """A chain of four stages whose boundaries are known: parameter "2.0.weight" is of stage 2."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10), nn.ReLU()),
        nn.Sequential(nn.Linear(10, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU()),
        nn.Sequential(nn.Linear(8, 5)),
    )
