"""MaruHandler.get_stats(): one handler's numbers, under the names that monitors of the older system read."""
from __future__ import annotations

from typing import Any

from .config import MaruConfig
from .places import Budget
from .records import Statistics
from .results import region_statistics


def statistics_of(now: Statistics, config: MaruConfig, budget: Budget[Any], region_bytes: int) -> dict[str, Any]:
    regions = [region_statistics(budget, region_id, pages, config.chunk_size_bytes) for region_id, pages in budget.regions()]
    operations = {
        "store": {"count": now.stores, "bytes": now.stored_bytes, "duplicates": now.duplicates},
        "retrieve": {"count": now.retrieve_hits + now.retrieve_misses, "hit": now.retrieve_hits, "miss": now.retrieve_misses},
        "exists": {"count": now.exists_keys, "hit": now.exists_hits, "miss": now.exists_keys - now.exists_hits},
        "delete": {"count": now.deletes},
    }
    return {
        "kv_manager": {"total_entries": now.stores, "total_size": now.stored_bytes},
        "allocation_manager": {"num_allocations": now.regions, "total_allocated": now.regions * region_bytes,
                               "active_clients": 1},
        "stats_manager": {"_all": operations, str(config.instance_id): operations},
        "store_regions": {"num_regions": len(regions), "regions": regions,
                          "total_pages": sum(region["page_count"] for region in regions),
                          "total_allocated": sum(region["allocated_pages"] for region in regions)},
        "allocator": regions[0],
        "native": now._asdict(),
    }
