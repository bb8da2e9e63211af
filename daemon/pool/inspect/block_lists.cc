#include "daemon/pool/inspect/block_lists.h"

#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/names.h"
#include "daemon/pool/inspect/tenant_rows.h"
#include "libmaru/shm/blocks/hash.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kPagesPerList = 1u << 16;  // looked at for one reply
constexpr size_t kPinnersNamedMax = 200;      // of one block

constexpr const char* kKindNames[] = {"bytes", "digest128", "digest256"};
constexpr const char* kContentNames[] = {"kv_cache", "lora_weight", "temporary", "activation", "gradient"};

constexpr const char* kTenantText =
    "\"tenant\" is a name of 1 to 64 bytes, as text or as 0x and hexadecimal digits; or id: and the tenant's number";

}  // namespace

// Everything here is read without a pin: it was true a moment ago.
json BlockLists::block_json(uint32_t page, PageWord found) {
  const format::BlockLine& line = core_.region.block(page);
  const format::DetailLine& detail = core_.region.detail(page);
  const PageRef ref = PageRef::of(page, found.generation());
  const uint64_t kind = detail.kind.load_acquire();
  const uint32_t content = uint32_t(kind >> 56);
  const uint64_t length = line.length.load_acquire();
  json row = {{"state", page_state_name(found.state())},
              {"page", page},
              {"generation", found.generation()},
              {"pages", core_.region.run_pages(page)},
              {"length_bytes", format::payload_bytes_of(length)},
              {"children", found.is(PageState::kReady) ? found.children() : 0},
              {"depth", uint32_t(line.shape.load_acquire() >> 32)},
              {"priority", uint32_t(kind)},
              {"type", content < std::size(kContentNames) ? json(kContentNames[content]) : json(content)},
              {"stored_ms", detail.stored_ms.load_acquire()},
              {"last_use_ms", core_.region.header().created_unix_ms + queues_.tick_of(page, found.generation())}};
  if (shm::read_key(core_.region, ref, &core_.key)) {
    row["key"] = key_text({core_.key.data, core_.key.size});
    row["kind"] = core_.key.kind < std::size(kKindNames) ? json(kKindNames[core_.key.kind]) : json(core_.key.kind);
    put_tenant(tenants_, core_.key.tenant, row);
  } else {
    row["key"] = nullptr;
  }
  if (const uint64_t bytes = format::metadata_bytes_of(length); bytes != 0) row["metadata_bytes"] = bytes;
  const PageRef parent = PageRef::from_bits(line.parent.load_acquire());
  if (core_.region.is_page(parent)) row["parent"] = parent.page();
  if (const uint64_t expires_ms = line.expires_ms.load_acquire(); expires_ms != 0) row["expires_ms"] = expires_ms;
  return row;
}

// The conditions of a listing. Pins are looked up for the blocks that the other conditions leave.
struct BlockLists::BlockFilter {
  std::vector<std::byte> prefix;
  std::optional<uint64_t> tenant;
  std::optional<uint32_t> content;
  uint64_t min_priority = 0;
  bool pinned = false;

  // Returns the mistake; empty: none.
  std::string read(const json& request, const PoolTenants& tenants) {
    prefix = key_bytes(text_in(request, "prefix"));
    min_priority = number_in(request, "min_priority", 0);
    pinned = flag_in(request, "pinned");
    if (request.contains("tenant")) tenant = tenant_in(tenants, request);
    if (request.contains("tenant") && !tenant) return kTenantText;
    const std::string type = text_in(request, "type");
    if (type.empty()) return {};
    std::string known;
    for (uint32_t i = 0; i < std::size(kContentNames); ++i) {
      if (type == kContentNames[i]) content = i;
      known += (i == 0 ? "" : ", ") + std::string(kContentNames[i]);
    }
    return content ? "" : "\"type\": found \"" + printable(type) + "\", expected one of " + known;
  }
};

bool BlockLists::passes(const BlockFilter& filter, uint32_t page, PageWord found) {
  const format::DetailLine& detail = core_.region.detail(page);
  const uint64_t kind = detail.kind.load_acquire();
  core_.meter.add(1);
  if (uint32_t(kind) < filter.min_priority) return false;
  if (filter.content && uint32_t(kind >> 56) != *filter.content) return false;
  if (filter.tenant && detail.tenant.load_acquire() != *filter.tenant) return false;
  if (!filter.prefix.empty()) {
    core_.meter.add(limits::kKeyExtentBytes / sizeof(format::BlockLine));  // at most
    if (!shm::read_key(core_.region, PageRef::of(page, found.generation()), &core_.key) ||
        core_.key.size < filter.prefix.size() ||
        std::memcmp(core_.key.data, filter.prefix.data(), filter.prefix.size()) != 0)
      return false;
  }
  return true;
}

json BlockLists::list(const json& request) {
  const uint64_t rows_max = rows_in(request);
  BlockFilter filter;
  if (const std::string wrong = filter.read(request, tenants_); !wrong.empty()) return refusal(EINVAL, wrong);
  json rows = json::array();
  size_t bytes = 0;
  uint64_t page = number_in(request, "cursor", 0);
  const uint64_t end = page < core_.pages() ? std::min(core_.pages(), page + kPagesPerList) : page;
  const LineBudget lines(core_.meter, kHeldLinesAtOnce);  // also for keys, and to look for pins in; one block at least
  for (; page < end && !lines.is_spent() && rows.size() < rows_max && bytes < kAdminReplyBytesMax; ++page) {
    const PageWord found = core_.word(uint32_t(page));
    if (!found.is(PageState::kReady) && !found.is(PageState::kRetiring) && !found.is(PageState::kRetired)) continue;
    if (!passes(filter, uint32_t(page), found)) continue;
    if (filter.pinned) {
      core_.meter.add(lanes_.look_lines());
      if (!shm::is_pinned(core_.region, lanes_.in_use, uint32_t(page))) continue;
    }
    json row = block_json(uint32_t(page), found);
    bytes += json_text(row).size();
    rows.push_back(std::move(row));
  }
  json reply = {{"blocks", std::move(rows)}};
  if (page < core_.pages()) reply["next"] = page;
  return reply;
}

PageRef BlockLists::named(const json& request, shm::Digest* ret_digest, json* ret_refusal) const {
  const std::vector<std::byte> bytes = key_bytes(text_in(request, "key"));
  if (bytes.empty() || bytes.size() > limits::kKeyBytesMax) {
    *ret_refusal = refusal(EINVAL, "\"key\" is text, or 0x and hexadecimal digits");
    return PageRef::none();
  }
  const std::string wanted_kind = text_in(request, "kind");
  const std::optional<uint64_t> given = tenant_in(tenants_, request);
  if (!given) {
    *ret_refusal = refusal(EINVAL, kTenantText);
    return PageRef::none();
  }
  const uint64_t tenant = *given;
  uint64_t words[4] = {};
  std::memcpy(words, bytes.data(), std::min(bytes.size(), sizeof(words)));
  PageRef ref = PageRef::none();
  for (uint32_t kind = 0; kind < std::size(kKindNames) && ref.is_none(); ++kind) {
    if (!wanted_kind.empty() && wanted_kind != kKindNames[kind]) continue;
    if ((kind == 1 && bytes.size() != 16) || (kind == 2 && bytes.size() != 32)) continue;
    *ret_digest = kind == 0   ? shm::digest_of_bytes(core_.region.secret(), bytes, tenant)
                  : kind == 1 ? shm::digest_of_128(core_.region.secret(), words[0], words[1], tenant)
                              : shm::digest_of_256(core_.region.secret(), words, tenant);
    ref = shm::find_unpinned(core_.region, *ret_digest);
  }
  if (ref.is_none()) *ret_refusal = refusal(ENOENT, "no block is stored under this key");
  return ref;
}

json BlockLists::one(const json& request) {
  shm::Digest digest;
  json none;
  const PageRef ref = named(request, &digest, &none);
  if (ref.is_none()) return none;
  json row = block_json(ref.page(), core_.word(ref.page()));
  put_metadata(ref, row);
  json pinned_by = json::array();
  uint64_t pinners = 0;
  lanes_.in_use.for_each(core_.region.lanes(), [&](uint32_t lane) {
    shm::LaneSet one;
    one.add(lane);
    if (!shm::is_pinned(core_.region, one, ref.page())) return;
    if (++pinners <= kPinnersNamedMax)  // so many that a reply has room for them
      pinned_by.push_back({{"lane", lane}, {"pid", int64_t(lanes_.records[lane].who.pid)}});
  });
  row["pinned_by"] = std::move(pinned_by);
  row["pinned_by_count"] = pinners;
  return row;
}

}  // namespace maru::daemon
