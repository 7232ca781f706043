"""Which device holds which region."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from netsplit.errors import ReshardError
from netsplit.reshard import Layout, Mesh, unit_tasks
from tests.reshard.carried import mesh_of


def test_the_three_layouts_of_the_papers_figure_2() -> None:
    """A 4 x 4 matrix on a 2 x 2 mesh."""
    mesh = Mesh(("a", "b", "c", "d"), (2, 2))
    rows = [Layout(mesh, "S01R").region(device, (4, 4)) for device in mesh.devices]
    assert rows == [((i, i + 1), (0, 4)) for i in range(4)]
    halves = [Layout(mesh, "S0R").region(device, (4, 4)) for device in mesh.devices]
    assert halves == [((0, 2), (0, 4))] * 2 + [((2, 4), (0, 4))] * 2
    squares = [Layout(mesh, "S0S1").region(device, (4, 4)) for device in mesh.devices]
    assert squares == [((i, i + 2), (j, j + 2)) for i in (0, 2) for j in (0, 2)]


def test_the_order_of_axes_says_who_has_which_piece() -> None:
    mesh = mesh_of("a", (2, 3))
    by_rows, by_columns = Layout(mesh, "S01").regions((6,)), Layout(mesh, "S10").regions((6,))
    assert [box[0][0] for box in by_rows.values()] == [0, 1, 2, 3, 4, 5]
    assert [box[0][0] for box in by_columns.values()] == [0, 2, 4, 1, 3, 5]


@given(size=st.integers(0, 13), parts=st.integers(1, 6), inner=st.integers(1, 4))
def test_pieces_are_those_of_torch_chunk(size: int, parts: int, inner: int) -> None:
    """Along two axes each piece of the first is chunked again; a device without a chunk holds nothing."""
    mesh = mesh_of("a", (parts, inner))
    expected: list[list[int]] = []
    chunks = torch.arange(size).chunk(parts)
    for chunk in (*chunks, *[torch.arange(0)] * (parts - len(chunks))):
        again = chunk.chunk(inner)
        expected += [each.tolist() for each in again] + [[]] * (inner - len(again))
    regions = Layout(mesh, "S01").regions((size,)).values()
    assert [np.arange(size)[a:b].tolist() for ((a, b),) in regions] == expected


@pytest.mark.parametrize(
    ("source", "destination", "tasks"),
    [("S01R", "S0R", 4), ("S0R", "S0S1", 4), ("RR", "RR", 1), ("S01R", "RS10", 16)],
)
def test_unit_tasks_of_a_4_by_4_matrix(source: str, destination: str, tasks: int) -> None:
    left, right = mesh_of("a", (2, 2)), mesh_of("b", (2, 2))
    assert len(unit_tasks(Layout(left, source), Layout(right, destination), (4, 4))) == tasks


def test_cut_points_are_uneven_where_sizes_do_not_divide() -> None:
    left, right = Layout(mesh_of("a", (2,)), "S0"), Layout(mesh_of("b", (3,)), "S0")
    tasks = unit_tasks(left, right, (7,))
    assert [task.region for task in tasks] == [((0, 3),), ((3, 4),), ((4, 6),), ((6, 7),)]
    assert [(task.senders, task.receivers) for task in tasks] == [
        (("a0",), ("b0",)),
        (("a0",), ("b1",)),
        (("a1",), ("b1",)),
        (("a1",), ("b2",)),
    ]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("P0R", "partial sum"),
        ("S", "is not a layout"),
        ("S0Q", "is not a layout"),
        ("S0S0", "names an axis of the mesh twice"),
        ("S2R", "names axis 2"),
    ],
)
def test_what_is_no_layout_is_said(spec: str, sentence: str) -> None:
    with pytest.raises(ReshardError, match=sentence):
        Layout(mesh_of("a", (2, 2)), spec)


def test_a_layout_for_other_dimensions_and_a_wrong_mesh_are_refused() -> None:
    with pytest.raises(ReshardError, match="for 2 dimensions, but the tensor has 1"):
        Layout(mesh_of("a", (2,)), "S0R").regions((4,))
    with pytest.raises(ReshardError, match="give 4"):
        Mesh((0, 1, 2), (2, 2))
    with pytest.raises(ReshardError, match="twice"):
        Mesh((0, 0), (2,))
