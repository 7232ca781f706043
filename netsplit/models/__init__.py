"""The models of the evaluation. Each builder raises `ConfigError` for an impossible size, with its key."""

from netsplit.models.amoebanet_d import amoebanet_d
from netsplit.models.convolutional import alexnet, googlenet, inception_v3, lenet, vgg19
from netsplit.models.perceptrons import dlrm, towers
from netsplit.models.recurrent import gnmt, rnnlm
from netsplit.models.resnet import deeplab_v3, resnet
from netsplit.models.transformers import bert, gpt, transformer
from netsplit.models.u_nets import u_transformer, unet, unet_classic

__all__ = [
    "alexnet", "amoebanet_d", "bert", "deeplab_v3", "dlrm", "gnmt", "googlenet", "gpt", "inception_v3",
    "lenet", "resnet", "rnnlm", "towers", "transformer", "u_transformer", "unet", "unet_classic", "vgg19",
]  # fmt: skip
