"""Under which keys of marud the objects of LMCache's server lie.

LMCache names an object by its model, the rank of its worker, its object group, the hash of its chunk, and a salt. marud's key
is a digest of all of these but the salt, and of the object's layout. So objects of other shapes or numbers under one name
never meet: neither of two engines that call two models the same, nor of one model in float16 and in bfloat16. The salt is the
tenant.

LMCache asks for an object without its layout. The layout is the one that the server's registry has for the model and the
number of its workers (`layouts`), and without one there the layout that this server has last written or found under such keys.

Thread safety: everything.
"""
from __future__ import annotations

import hashlib
import math
import struct
from typing import Any, Callable, Iterable, NamedTuple, Optional

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey

from maru import Client

from .model_names import ModelNames

# (model, number of workers) -> {object group: layout}, or None where nothing is registered.
Layouts = Callable[[str, int], Optional[dict[int, MemoryLayoutDesc]]]

_SCHEME = b"maru lmcache 1"  # what the digests are for; another number makes all of them others
_TENANT_BYTES_MAX = 64
_HASHED_TENANT = "salt:"


class Place(NamedTuple):
    """Where an object lies: the tenant's number and the digest."""

    tenant: int
    digest: bytes


def layout_text(shapes: Iterable[torch.Size], dtypes: Iterable[torch.dtype]) -> str:
    """The same text for equal layouts alone, for example `bfloat16[2,32,256,1024]`."""
    return ";".join(f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
                    for shape, dtype in zip(shapes, dtypes, strict=True))


def salt_text(salt: str) -> str:
    """A name that marud takes for a tenant, of 64 bytes at most, another one for each salt."""
    if len(salt.encode()) <= _TENANT_BYTES_MAX and not salt.startswith(_HASHED_TENANT):
        return salt
    return _HASHED_TENANT + hashlib.blake2b(salt.encode(), digest_size=24).hexdigest()


class Family:
    """The objects of one model, rank, object group and layout."""

    def __init__(self, model: str, kv_rank: int, group: int, layout: MemoryLayoutDesc, purpose: bytes = b"") -> None:
        self.layout = layout
        self.shapes: list[torch.Size] = list(layout.shapes)
        self.dtypes: list[torch.dtype] = list(layout.dtypes)
        self.text = layout_text(self.shapes, self.dtypes)
        self.nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes))
        self._begun = hashlib.blake2b(digest_size=32, person=_SCHEME)
        for part in (purpose, model.encode(), struct.pack("<QQ", kv_rank, group), self.text.encode()):
            self._begun.update(struct.pack("<Q", len(part)) + part)
        # For administrators and tools; the digest stands for the same.
        self.metadata = f"lmcache {model} {kv_rank:08x} {group} {self.text}".encode()

    def digest(self, chunk_hash: bytes) -> bytes:
        hasher = self._begun.copy()
        hasher.update(chunk_hash)
        return hasher.digest()

    def has(self, layout: MemoryLayoutDesc) -> bool:
        return layout is self.layout or (list(layout.shapes) == self.shapes and list(layout.dtypes) == self.dtypes)


class Keys:
    """Gives each object its family and its place."""

    def __init__(self, client: Client, tenant: str, layouts: Optional[Layouts] = None) -> None:
        """tenant: of the objects without a salt; "" for none."""
        self._client = client
        self._tenant = tenant
        self.layouts = layouts  # may be set later, when the server has a registry
        self._names = ModelNames()
        self._tenants: dict[str, int] = {}
        self._families: dict[tuple[str, int, int], Family] = {}
        self._registrations: dict[tuple[str, int], dict[int, MemoryLayoutDesc]] = {}

    def tenant(self, salt: str) -> int:
        known = self._tenants.get(salt)
        if known is None:
            # A salt has no slash, so no two pairs of a tenant and a salt have the same name.
            name = f"{self._tenant}/{salt}" if self._tenant and salt else self._tenant or salt
            known = self._client.tenant(salt_text(name)) if name else 0
            if len(self._tenants) < 65536:  # salts come from requests; past this many each costs a hash again
                self._tenants[salt] = known
        return known

    def model_name(self, key: ObjectKey) -> Optional[str]:
        """As it is in the keys; None while the weights behind it are not yet known."""
        return self._names.in_keys(key.model_name)

    def family(self, key: ObjectKey, layout: Optional[MemoryLayoutDesc] = None, is_lasting: bool = True) -> Optional[Family]:
        """None while nothing says the layout, and while the weights behind the model's name are not yet known. layout: of an
        object that is at hand; the registry's otherwise. is_lasting: such keys have this layout from now on where the registry
        has none; a temporary object may be another thing under such a key."""
        registered = self._registered(key)
        name = self._names.in_keys(key.model_name)
        if name is None:
            return None
        of = name, key.kv_rank, key.object_group_id
        wanted = registered if layout is None else layout
        last = self._families.get(of)
        if last is not None and (wanted is None or last.has(wanted)):
            return last
        if wanted is None:
            return None
        made = Family(name, key.kv_rank, key.object_group_id, wanted)
        if is_lasting:
            self._families[of] = made
        return made

    def worker_registered(self, model: str, workers: int) -> None:
        """Begins to read the weights behind the name, so that they are known when a request asks for objects."""
        self._groups(model, workers)
        self._names.in_keys(model)

    def _registered(self, key: ObjectKey) -> Optional[MemoryLayoutDesc]:
        groups = self._groups(key.model_name, ObjectKey.WorldSizeFromKVRank(key.kv_rank))
        return None if groups is None else groups.get(key.object_group_id)

    def _groups(self, model: str, workers: int) -> Optional[dict[int, MemoryLayoutDesc]]:
        groups = None if self.layouts is None else self.layouts(model, workers)
        if groups is not None and self._registrations.get((model, workers)) is not groups:  # a worker has registered since
            self._registrations[model, workers] = groups
            self._names.look_again(model)
        return groups

    def located(self, keys: list[ObjectKey], layout: Optional[MemoryLayoutDesc] = None, is_lasting: bool = True,
                ) -> list[Optional[tuple[Family, Place]]]:
        """For each key its family and place, None where there is no family."""
        answer: list[Optional[tuple[Family, Place]]] = []
        of: Any = None
        family: Optional[Family] = None
        salt: Optional[str] = None
        tenant = 0
        for key in keys:
            if of != (key.model_name, key.kv_rank, key.object_group_id):
                of = key.model_name, key.kv_rank, key.object_group_id
                family = self.family(key, layout, is_lasting)
            if family is None:
                answer.append(None)
                continue
            if salt != key.cache_salt:
                tenant, salt = self.tenant(key.cache_salt), key.cache_salt
            answer.append((family, Place(tenant, family.digest(key.chunk_hash))))
        return answer
