"""The models of the evaluation. Each builder raises `ConfigError` for a size that cannot be, by its key."""

from netsplit.models.alexnet import alexnet
from netsplit.models.amoebanet_d import amoebanet_d
from netsplit.models.bert import bert
from netsplit.models.deeplab_v3 import deeplab_v3
from netsplit.models.dlrm import dlrm
from netsplit.models.googlenet import googlenet, inception_v3
from netsplit.models.gpt import gpt
from netsplit.models.lenet import lenet
from netsplit.models.resnet import resnet
from netsplit.models.sequences.gnmt import gnmt
from netsplit.models.sequences.rnnlm import rnnlm
from netsplit.models.sequences.transformer import transformer
from netsplit.models.towers import towers
from netsplit.models.u_transformer import u_transformer
from netsplit.models.unet import unet
from netsplit.models.unet_classic import unet_classic
from netsplit.models.vgg19 import vgg19

__all__ = [
    "alexnet", "amoebanet_d", "bert", "deeplab_v3", "dlrm", "gnmt", "googlenet", "gpt", "inception_v3",
    "lenet", "resnet", "rnnlm", "towers", "transformer", "u_transformer", "unet", "unet_classic", "vgg19",
]  # fmt: skip
