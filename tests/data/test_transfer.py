"""Batches for a device without streams are copied synchronously."""

import torch

from hasten.data.epoch.transfer import Direct, transfer_to


def test_without_a_device_there_is_no_transfer():
    assert transfer_to(None) is None


def test_a_device_without_streams_gets_its_batch_synchronously(monkeypatch):
    monkeypatch.setattr("hasten.devices.accelerator.has_streams", lambda device: False)
    transfer = transfer_to(torch.device("cpu"))
    assert isinstance(transfer, Direct)
    batch = transfer.receive(transfer.send([torch.arange(4), "name"]))
    assert torch.equal(batch[0], torch.arange(4)) and batch[1] == "name"
