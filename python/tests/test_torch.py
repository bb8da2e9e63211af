"""Tensors made from a view; skipped where torch is not."""
import numpy
import pytest

torch = pytest.importorskip("torch")


def test_a_tensor_keeps_its_block_pinned(client, key):
    data = numpy.arange(1000, dtype=numpy.float32)
    client.store_copy(key, data)
    view = client.retrieve(key)
    tensor = torch.frombuffer(view.data, dtype=torch.float32)
    view.release()
    assert client.statistics().pins == 1
    client.close()
    assert bool((tensor == torch.from_numpy(data)).all())
