"""nn.Transformer as a whole, is_causal left to its own detection, which looks at the mask's values."""

from torch import nn

from tests.models_of_people.data import tokens


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(8, 5)

    def forward(self, ids):
        x = self.embed(ids)
        mask = self.transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.fc(self.transformer(x, x, tgt_mask=mask).mean(1))


batch = tokens()
