"""MaruHandler.get_stats(): one handler's numbers, under the names that monitors of the older system read."""
from __future__ import annotations

from typing import Any

from .config import MaruConfig
from .places import Budget
from .records import Statistics
from .results import region_statistics


def regions_of(config: MaruConfig, budget: Budget[Any]) -> dict[str, Any]:
    """The budget, by region and in all. A page of a region has chunk_size_bytes."""
    regions = [region_statistics(budget, region_id, pages, config.chunk_size_bytes) for region_id, pages in budget.regions()]
    pages = sum(region["page_count"] for region in regions)
    allocated = sum(region["allocated_pages"] for region in regions)
    return {"num_regions": len(regions), "regions": regions, "total_pages": pages, "total_allocated": allocated,
            "total_pool_size": pages * config.chunk_size_bytes, "total_page_count": pages,
            "total_free_pages": pages - allocated, "total_allocated_pages": allocated, "utilization": allocated / pages}


def statistics_of(now: Statistics, config: MaruConfig, budget: Budget[Any], region_bytes: int,
                  pool_bytes: int) -> dict[str, Any]:
    regions = regions_of(config, budget)
    rented_bytes = now.regions * region_bytes
    operations = {
        "store": {"count": now.stores, "bytes": now.stored_bytes, "duplicates": now.duplicates},
        "retrieve": {"count": now.retrieve_hits + now.retrieve_misses, "hit": now.retrieve_hits, "miss": now.retrieve_misses},
        "exists": {"count": now.exists_keys, "hit": now.exists_hits, "miss": now.exists_keys - now.exists_hits},
        "delete": {"count": now.deletes},
    }
    return {
        "kv_manager": {"total_entries": now.stores, "total_size": now.stored_bytes},
        "allocation_manager": {"num_allocations": now.regions, "total_allocated": rented_bytes, "active_clients": 1},
        "stats_manager": {"_all": operations, str(config.instance_id): operations,
                          "clients": {str(config.instance_id): operations}},
        "store_regions": regions,
        "allocator": regions["regions"][0],
        # The bytes of the pool, and those that this handler does not rent. Other processes may rent these.
        "cxl_pool": {"total_size": pool_bytes, "free_size": max(0, pool_bytes - rented_bytes)},
        "native": now._asdict(),
    }
