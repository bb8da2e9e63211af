// A slot of the registry for a key whose buckets are full: the coldest movable block there, of at most fourteen, makes
// room, in the order of the policy. A client asks only after the registry refused its key, once in 50,000 stores of a
// full pool. marud decides at once, without a round over all touches: at worst it evicts a block that was used just now.
//
// Thread safety: one thread.
#pragma once

#include "daemon/pool/eviction/evictor.h"
#include "daemon/pool/eviction/recency.h"
#include "maru/format/wire.h"

#include <string>

namespace maru::daemon {

class BucketRoom {
 public:
  BucketRoom(PoolCore& core, RegionTable& regions, Queues& queues, Recency& recency, Evictor& evictor)
      : core_(core), regions_(regions), queues_(queues), recency_(recency), evictor_(evictor) {}
  BucketRoom(const BucketRoom&) = delete;
  BucketRoom& operator=(const BucketRoom&) = delete;

  // 0, and there is a slot for the key unless another client took it; or EXFULL, and why.
  int make(const wire::RoomRequest& request, std::string* ret_why);

 private:
  PoolCore& core_;
  RegionTable& regions_;
  Queues& queues_;
  Recency& recency_;
  Evictor& evictor_;
};

}  // namespace maru::daemon
