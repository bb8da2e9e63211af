// Blocks as people and tools see them. Lists are cut at 200 rows and after a bounded walk; "next" goes on from there, and may
// come with few rows or none. All is read without a pin: it was true a moment ago.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/core.h"
#include "daemon/pool/eviction/queues.h"
#include "daemon/pool/lanes/lane_table.h"
#include "daemon/pool/tenants/pool_tenants.h"
#include "libmaru/shm/blocks/hash.h"

#include <cstdint>
#include <nlohmann/json.hpp>

namespace maru::daemon {

class BlockLists {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    PoolTenants& tenants;
    Queues& queues;
  };
  explicit BlockLists(const Below& below)
      : core_(below.core), lanes_(below.lanes), tenants_(below.tenants), queues_(below.queues) {}
  BlockLists(const BlockLists&) = delete;
  BlockLists& operator=(const BlockLists&) = delete;

  nlohmann::json list(const nlohmann::json& request);  // "blocks"
  nlohmann::json one(const nlohmann::json& request);   // "block"
  // The block that "key", "tenant" and "kind" name; none when there is none, with the refusal to answer. Without a kind every
  // kind that the key may have is tried.
  PageRef named(const nlohmann::json& request, shm::Digest* ret_digest, nlohmann::json* ret_refusal) const;

 private:
  struct BlockFilter;
  bool passes(const BlockFilter& filter, uint32_t page, PageWord found);
  nlohmann::json block_json(uint32_t page, PageWord found);
  void put_metadata(PageRef ref, nlohmann::json& row) const;  // block_metadata.cc

  PoolCore& core_;
  LaneTable& lanes_;
  PoolTenants& tenants_;
  Queues& queues_;
};

}  // namespace maru::daemon
