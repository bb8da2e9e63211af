"""An adapter goes into the pool, is used, and computes: adapters.py FOLDER. $MARU_SOCKET names marud's socket."""
import pathlib
import sys

import numpy as np

from maru.adapters import Adapters, BatchFormer, Bgmv

folder = pathlib.Path(sys.argv[1])
with Adapters(register_path=folder / "register", base_model="base/model") as adapters:
    adapters.load("sql", folder / "sql")
    print(adapters["sql"].tier.name, adapters["sql"].rank, len(list(adapters)))
    with adapters.acquire("sql", exact=True) as adapter:
        module = adapter.module(0)
        print(adapter.info.tier.name, module.name, module.in_features, module.out_features)
        a, b = adapter.a(module.name), adapter.b(module.name)
        x = np.ones((2, module.in_features), dtype=np.float32)
        y = np.zeros((2, module.out_features), dtype=np.float32)
        Bgmv(threads=2).add([adapter, None], 0, x, y)  # the second request wants the base model
        print(np.allclose(y[0], module.scaling * b @ (a @ x[0]), atol=1e-4), y[1].any())
    former = BatchFormer()
    former.add(1, tenant=7, adapter=1, rank=8)
    former.add(2, tenant=8)
    print(former.next(), len(former))
    adapters.unload("sql")
