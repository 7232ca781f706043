"""Which gradients are sparse, against torch's own list of operators."""

import pytest
import torch

from netsplit.graph.arguments import gives_sparse_gradients
from netsplit.graph.ir import Node


def looking_up() -> dict[str, int]:
    """Operators of `aten` that a forward may call with `sparse`, and the place of that argument."""
    places = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, op = name.partition("::")
        if space != "aten" or "backward" in op:
            continue
        packet, _, overload = op.partition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
        for place, argument in enumerate(schema.arguments):
            if argument.name == "sparse" and isinstance(argument.type, torch.BoolType):
                places[f"aten.{packet}.{overload or 'default'}"] = place
    return places


@pytest.mark.parametrize("sparse", [False, True])
def test_every_operator_of_torch_that_may_give_a_sparse_gradient_is_known(sparse: bool) -> None:
    places = looking_up()
    assert "aten.embedding.default" in places
    for op, place in places.items():
        given = Node("lookup", op, (), (), args=(*[None] * place, sparse), kwargs={})
        by_name = Node("lookup", op, (), (), args=(), kwargs={"sparse": sparse})
        assert gives_sparse_gradients(given) == gives_sparse_gradients(by_name) == sparse
        assert not gives_sparse_gradients(Node("lookup", op, (), (), args=(), kwargs={}))
