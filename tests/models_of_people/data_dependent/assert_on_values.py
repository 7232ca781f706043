"""An assertion on values, as careful people write."""

from torch import nn

from tests.models_of_people.data import tokens


class Careful(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(11, 6), nn.Linear(6, 5)

    def forward(self, ids):
        assert ids.min() >= 0, "negative word"
        assert int(ids.max()) < self.embed.num_embeddings
        return self.fc(self.embed(ids).mean(1))


batch = tokens()
EXPECT = "either"
REASON = "data-dependent|value|assert|control flow"
