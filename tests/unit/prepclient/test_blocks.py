"""Host blocks come back when the last tensor over them is gone, and never before."""

from __future__ import annotations

import gc

import torch

from prepclient.blocks import _KEPT_FREE, HostBlocks


def test_a_block_is_not_taken_again_while_any_view_of_it_lives() -> None:
    blocks = HostBlocks(4096)
    first = blocks.take()
    view = first[100:200].view(10, 10)
    view.fill_(7)
    del first
    gc.collect()
    second = blocks.take()
    second.zero_()
    assert int(view.sum()) == 700


def test_a_block_is_taken_again_when_the_last_view_is_gone() -> None:
    blocks = HostBlocks(4096)
    first = blocks.take()
    address = first.data_ptr()
    view = first[5:]
    del first
    gc.collect()
    assert blocks.take().data_ptr() != address
    del view
    gc.collect()
    assert {blocks.take().data_ptr(), blocks.take().data_ptr()} & {address}


def test_only_some_blocks_are_kept_after_a_burst() -> None:
    blocks = HostBlocks(64)
    many = [blocks.take() for _ in range(3 * _KEPT_FREE)]
    assert len({t.data_ptr() for t in many}) == len(many)
    many.clear()
    gc.collect()
    assert len(blocks._free) == _KEPT_FREE


def test_as_many_batches_are_kept_whatever_a_batch_takes() -> None:
    blocks = HostBlocks(64, of_batch=3)
    many = [blocks.take() for _ in range(9 * _KEPT_FREE)]
    many.clear()
    gc.collect()
    assert len(blocks._free) == 3 * _KEPT_FREE


def test_a_tensor_outlives_its_blocks() -> None:
    tensor = HostBlocks(16).take()
    gc.collect()
    tensor.fill_(3)
    assert tensor.tolist() == [3] * 16
    assert tensor.dtype == torch.uint8


def test_blocks_of_nothing_can_be_taken() -> None:
    assert HostBlocks(0).take().numel() == 1
