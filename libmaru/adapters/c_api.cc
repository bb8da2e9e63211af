// maru/adapters.h: arguments checked, and memory that is not there made into -ENOMEM. Adapters and their weights; the
// products and the batches are in bgmv_api.cc and batch_api.cc.
#include "libmaru/adapters/adapter_set.h"
#include "libmaru/adapters/transpose.h"
#include "libmaru/adapters/weights.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <unistd.h>

using namespace maru::adapters;

struct maru_adapters {
  maru_adapters(maru_client* client, AdapterSet::Wish wish) : set(client, std::move(wish)) {}
  AdapterSet set;
};

namespace {

template <typename Call>
int guarded(maru_adapters_reason* reason, const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return fail(reason, ENOMEM, "this process has no memory left");
  }
}

uint64_t monotonic_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1'000'000;
}

uint64_t rounded_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

template <typename T>
T otherwise(T value, T if_zero) {
  return value != 0 ? value : if_zero;
}

std::string default_path(const uint8_t uuid[16]) {
  std::string path = "/dev/shm/maru-adapters." + std::to_string(::geteuid()) + ".";
  constexpr char kDigits[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) path += {kDigits[uuid[i] >> 4], kDigits[uuid[i] & 15]};
  return path;
}

int read_modules(const maru_adapters_options& options, AdapterSet::Wish* wish, maru_adapters_reason* reason) {
  if (options.modules_count > 0 && options.modules == nullptr)
    return fail(reason, EINVAL, "modules_count without modules");
  for (size_t i = 0; i < options.modules_count; ++i) {
    const maru_adapters_module& module = options.modules[i];
    if (module.name == nullptr || module.in_features == 0 || module.out_features == 0)
      return fail(reason, EINVAL, "modules[%zu] has no name, or no features", i);
    wish->base.push_back({module.name, module.in_features, module.out_features});
  }
  return 0;
}

int make_wish(const maru_geometry& geometry, const maru_adapters_options& options, AdapterSet::Wish* wish,
              maru_adapters_reason* reason) {
  Register::Wish& own = wish->in_register;
  std::memcpy(own.pool_uuid, geometry.uuid, sizeof(own.pool_uuid));
  own.path = options.register_path != nullptr ? options.register_path : default_path(geometry.uuid);
  own.page_bytes = geometry.page_bytes;
  const uint64_t region_bytes = geometry.region_pages * geometry.page_bytes;
  own.part_bytes = otherwise(options.part_bytes, std::min(region_bytes, rounded_up(256u << 10, geometry.page_bytes)));
  own.entries_max = otherwise(options.entries_max, 16384u);
  own.timeout_ms = otherwise(options.timeout_ms, 5000u);
  own.base_model = options.base_model != nullptr ? options.base_model : "";
  if (options.base_fingerprint != nullptr)
    std::memcpy(own.base_fingerprint, options.base_fingerprint, sizeof(own.base_fingerprint));
  if (own.part_bytes % geometry.page_bytes != 0 || own.part_bytes > region_bytes)
    return fail(reason, EINVAL, "part_bytes is %llu; expected a multiple of the page (%llu), at most a region (%llu)",
                ull{own.part_bytes}, ull{geometry.page_bytes}, ull{region_bytes});
  if (own.entries_max > MARU_ADAPTERS_ENTRIES_MAX)
    return fail(reason, EINVAL, "entries_max is %u; at most %u", own.entries_max, MARU_ADAPTERS_ENTRIES_MAX);
  if (own.base_model.size() > MARU_ADAPTERS_BASE_BYTES_MAX)
    return fail(reason, EINVAL, "base_model has %zu bytes; at most %d", own.base_model.size(),
                MARU_ADAPTERS_BASE_BYTES_MAX);
  Rules& rules = own.rules;
  rules.window_ms = otherwise(options.window_ms, 60'000u);
  rules.hot_enter_uses = otherwise(options.hot_enter_uses, 10u);
  rules.hot_leave_uses = otherwise(options.hot_leave_uses, rules.hot_enter_uses / 2);
  rules.stay_ms = otherwise(options.stay_ms, 30'000u);
  rules.adapters_max[index_of(Form::kHot)] = otherwise(options.hot_adapters_max, 100u);
  rules.adapters_max[index_of(Form::kWarm)] = otherwise(options.warm_adapters_max, 1000u);
  rules.bytes_max[index_of(Form::kHot)] = otherwise(options.hot_bytes_max, geometry.pool_bytes / 4);
  rules.bytes_max[index_of(Form::kWarm)] = otherwise(options.warm_bytes_max, geometry.pool_bytes / 4);
  if (rules.hot_leave_uses > rules.hot_enter_uses)
    return fail(reason, EINVAL, "hot_leave_uses is %u; expected at most hot_enter_uses (%u)", rules.hot_leave_uses,
                rules.hot_enter_uses);
  if (options.root != nullptr) wish->root = options.root;
  const char* const tier = options.tier_socket != nullptr ? options.tier_socket : std::getenv("MARU_TIER_SOCKET");
  if (tier != nullptr) wish->tier_socket = tier;
  if (options.now_ms != nullptr) {
    wish->now_ms = [now = options.now_ms, context = options.now_context] { return now(context); };
  } else {
    wish->now_ms = monotonic_ms;
  }
  return read_modules(options, wish, reason);
}

maru_adapter_rows rows_of(const maru_adapter& adapter, const RowsPlace& place) {
  maru_adapter_rows rows = {};
  rows.parts = adapter.parts.parts().data() + place.first_part;
  rows.first_offset = place.first_offset;
  rows.first_rows = place.first_rows;
  rows.rows_per_part = place.rows_per_part;
  rows.slot_bytes = place.slot_bytes;
  rows.rows = place.rows;
  rows.columns = place.columns;
  rows.dtype = uint32_t(adapter.shape->manifest.element);
  return rows;
}

// Calls take(row, address of its weights).
template <typename Take>
void for_each_row(const maru_adapter& adapter, const RowsPlace& place, const Take& take) {
  for (uint64_t row = 0; row < place.rows; ++row) {
    const RowsPlace::Spot spot = place.spot(row);
    take(row, static_cast<const std::byte*>(adapter.parts.parts()[spot.part]) + spot.offset);
  }
}

}  // namespace

int maru_adapters_open(maru_client* client, const maru_adapters_options* options, maru_adapters** ret_adapters,
                       maru_adapters_reason* reason) {
  return guarded(reason, [&] {
    static const maru_adapters_options kDefaults = [] {
      maru_adapters_options defaults = {};
      defaults.size = sizeof(defaults);
      return defaults;
    }();
    if (client == nullptr || ret_adapters == nullptr)
      return fail(reason, EINVAL, "no client, or no place for the result");
    if (options == nullptr) options = &kDefaults;
    if (options->size != sizeof(*options))
      return fail(reason, EINVAL, "options->size is %zu; expected %zu", options->size, sizeof(*options));
    maru_geometry geometry = {};
    geometry.size = sizeof(geometry);
    if (const int status = maru_get_geometry(client, &geometry); status < 0)
      return fail(reason, -status, "the pool has no geometry: %s", std::strerror(-status));
    AdapterSet::Wish wish;
    if (const int status = make_wish(geometry, *options, &wish, reason); status < 0) return status;
    auto made = std::make_unique<maru_adapters>(client, std::move(wish));
    if (const int status = made->set.open(reason); status < 0) return status;
    *ret_adapters = made.release();
    return 0;
  });
}

void maru_adapters_close(maru_adapters* adapters) { delete adapters; }

int maru_adapters_load(maru_adapters* adapters, const char* name, const char* folder, uint32_t flags,
                       maru_adapters_reason* reason) {
  return guarded(reason, [&] {
    if (adapters == nullptr || name == nullptr || folder == nullptr)
      return fail(reason, EINVAL, "an argument is missing");
    if ((flags & ~uint32_t{MARU_ADAPTERS_LOAD_LAZY}) != 0)
      return fail(reason, EINVAL, "flags is %#x; expected 0 or 1", flags);
    return adapters->set.load(name, folder, flags, reason);
  });
}

int maru_adapters_unload(maru_adapters* adapters, const char* name, maru_adapters_reason* reason) {
  return guarded(reason, [&] {
    if (adapters == nullptr || name == nullptr) return fail(reason, EINVAL, "an argument is missing");
    return adapters->set.unload(name, reason);
  });
}

int maru_adapters_acquire(maru_adapters* adapters, const char* name, uint32_t want, maru_adapter** ret_adapter,
                          maru_adapters_reason* reason) {
  return guarded(reason, [&] {
    if (adapters == nullptr || name == nullptr || ret_adapter == nullptr)
      return fail(reason, EINVAL, "an argument is missing");
    if (want > MARU_ADAPTER_EXACT) return fail(reason, EINVAL, "want is %u; expected 0 or 1", want);
    return adapters->set.acquire(name, want, ret_adapter, reason);
  });
}

void maru_adapters_release(maru_adapter* adapter) {
  if (adapter != nullptr) adapter->set->release(adapter);
}

int maru_adapters_prefetch(maru_adapters* adapters, const char* const* names, size_t n, uint32_t want,
                           int32_t* ret_results) {
  return guarded(nullptr, [&] {
    if (adapters == nullptr || (n > 0 && names == nullptr) || n > INT32_MAX || want > MARU_ADAPTER_EXACT)
      return -EINVAL;
    int resident = 0;
    for (size_t i = 0; i < n; ++i) {
      const int status = names[i] != nullptr ? adapters->set.prefetch(names[i], want) : -EINVAL;
      if (ret_results != nullptr) ret_results[i] = status;
      resident += status == 0;
    }
    return resident;
  });
}

int maru_adapters_rebalance(maru_adapters* adapters, uint32_t moves_max) {
  return guarded(nullptr, [&] {
    return adapters != nullptr ? adapters->set.rebalance(std::min<uint32_t>(moves_max, INT32_MAX)) : -EINVAL;
  });
}

int maru_adapters_find(maru_adapters* adapters, const char* name, maru_adapter_info* ret_info) {
  return guarded(nullptr, [&] {
    if (adapters == nullptr || name == nullptr || ret_info == nullptr || ret_info->size != sizeof(*ret_info))
      return -EINVAL;
    return adapters->set.find(name, ret_info);
  });
}

int maru_adapters_next(maru_adapters* adapters, uint64_t* cursor, maru_adapter_info* ret_info) {
  return guarded(nullptr, [&] {
    if (adapters == nullptr || cursor == nullptr || ret_info == nullptr || ret_info->size != sizeof(*ret_info))
      return -EINVAL;
    return adapters->set.next(cursor, ret_info);
  });
}

int maru_adapters_get_statistics(maru_adapters* adapters, maru_adapters_statistics* ret_statistics) {
  return guarded(nullptr, [&] {
    if (adapters == nullptr || ret_statistics == nullptr || ret_statistics->size != sizeof(*ret_statistics))
      return -EINVAL;
    return adapters->set.statistics(ret_statistics);
  });
}

int maru_adapter_get_info(const maru_adapter* adapter, maru_adapter_info* ret_info) {
  return guarded(nullptr, [&] {
    if (adapter == nullptr || ret_info == nullptr || ret_info->size != sizeof(*ret_info)) return -EINVAL;
    return adapter->set->describe(*adapter, ret_info);
  });
}

size_t maru_adapter_modules(const maru_adapter* adapter) {
  return adapter != nullptr ? adapter->shape->manifest.modules.size() : 0;
}

int maru_adapter_get_module(const maru_adapter* adapter, size_t number, maru_adapter_module* ret_module) {
  if (adapter == nullptr || ret_module == nullptr || ret_module->size != sizeof(*ret_module)) return -EINVAL;
  if (number >= maru_adapter_modules(adapter)) return -ENOENT;
  const Module& module = adapter->shape->manifest.modules[number];
  const ModulePlace& place = adapter->shape->placement.modules[number];
  *ret_module = {sizeof(*ret_module), module.name.c_str(), module.in_features,         module.out_features,
                 module.rank,         module.scaling,      rows_of(*adapter, place.a), rows_of(*adapter, place.bt)};
  return 0;
}

int maru_adapter_copy(const maru_adapter* adapter, size_t number, uint32_t matrix, uint32_t dtype, void* ret_data,
                      uint64_t bytes) {
  return guarded(nullptr, [&] {
    if (adapter == nullptr || ret_data == nullptr) return -EINVAL;
    if (number >= maru_adapter_modules(adapter)) return -ENOENT;
    const Element held = adapter->shape->manifest.element;
    const bool as_floats = dtype == MARU_ADAPTER_FLOAT32;
    if ((!as_floats && (dtype != uint32_t(held) || held == Element::kInt8)) ||
        (matrix != MARU_ADAPTER_A && matrix != MARU_ADAPTER_B))
      return -EINVAL;
    const ModulePlace& places = adapter->shape->placement.modules[number];
    const RowsPlace& place = matrix == MARU_ADAPTER_A ? places.a : places.bt;
    const uint64_t size = as_floats ? sizeof(float) : element_bytes(held);
    if (bytes != place.rows * place.columns * size) return -EINVAL;
    auto* const to = static_cast<std::byte*>(ret_data);
    // The held rows are the rows of A, and the columns of B. Both are read as they are, or made into floats first.
    std::vector<const std::byte*> rows(place.rows);
    for_each_row(*adapter, place, [&](uint64_t row, const std::byte* weights) { rows[row] = weights; });
    if (matrix == MARU_ADAPTER_A) {
      for (uint64_t row = 0; row < place.rows; ++row) {
        std::byte* const row_to = to + row * place.columns * size;
        if (as_floats)
          load_floats(rows[row], held, place.columns, reinterpret_cast<float*>(row_to));
        else
          std::memcpy(row_to, rows[row], place.columns * size);
      }
      return 0;
    }
    if (as_floats)
      turn_to_floats(rows.data(), held, place.rows, place.columns, static_cast<float*>(ret_data));
    else
      transpose(
          size, [from = rows.data()](uint64_t row) { return from[row]; }, place.rows, place.columns,
          [to, row_bytes = place.rows * size](uint64_t column) { return to + column * row_bytes; });
    return 0;
  });
}
