#include "daemon/tools/replay/lct.h"

#include "daemon/base/msgpack.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <unordered_map>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::replay {
namespace {

using daemon::MsgpackReader;
using daemon::MsgpackWriter;
using format::Recorded;
using Type = MsgpackReader::Type;

constexpr std::string_view kMagic = "LMCT";
constexpr uint64_t kFormat = 1, kSchemaMax = 2;
constexpr std::string_view kPrefix = "lmcache.v1.distributed.storage_manager.StorageManager.";
constexpr std::string_view kReserve = "reserve_write", kFinish = "finish_write", kPrefetch = "submit_prefetch_task",
                           kEnter = "read_prefetched_results.__enter__", kExit = "read_prefetched_results.__exit__",
                           kFinishRead = "finish_read_prefetched";
constexpr std::string_view kModel = "maru";  // the model in keys that this program writes
constexpr size_t kCallKeysMax = 1u << 20;    // of one call
constexpr double kSecondsMax = 1e9;

struct KeyHash {
  size_t operator()(const RecordedKey& key) const { return key.low; }
};
struct KeyEqual {
  bool operator()(const RecordedKey& a, const RecordedKey& b) const { return a.low == b.low && a.high == b.high; }
};

// -- reading ----------------------------------------------------------------------------------------------------------

// An ObjectKey of LMCache.
struct ObjectKey {
  std::string_view hash, model, salt;
  uint64_t rank = 0, group = 0;

  RecordedKey digest() const {
    RecordedKey key;
    if (model == kModel && hash.size() == sizeof(key) && rank == 0 && group == 0 && salt.empty()) {
      std::memcpy(&key, hash.data(), sizeof(key));
      return key;
    }
    MsgpackWriter whole;  // lengths in front of the parts: no two keys have the same bytes
    whole.binary(hash);
    whole.text(model);
    whole.whole(rank);
    whole.whole(group);
    whole.text(salt);
    const XXH128_hash_t digest = XXH3_128bits(whole.bytes().data(), whole.size());
    return {digest.low64, digest.high64};
  }
};

uint64_t bytes_of_type(std::string_view dtype) {
  if (dtype.starts_with("torch.")) dtype.remove_prefix(6);
  if (dtype.starts_with("complex128")) return 16;
  for (const auto& [digits, bytes] : {std::pair("64", 8u), std::pair("32", 4u), std::pair("16", 2u)})
    if (dtype.ends_with(digits)) return bytes;
  return 1;
}

// The keys and sizes in the arguments of a call, at any depth.
struct Arguments {
  std::vector<RecordedKey> keys;
  uint64_t object_bytes = 0;  // of the first layout
};

// Values that LMCache wraps are maps {"__t__": type, "v": value}. The other values are passed through.
class ArgumentReader {
 public:
  ArgumentReader(MsgpackReader& in, Arguments& arguments) : in_(in), arguments_(arguments) {}

  bool read(int depth) {
    if (depth > MsgpackReader::kDepthMax) return false;
    size_t count = 0;
    if (in_.peek() == Type::kArray) {
      if (!in_.array(count)) return false;
      for (size_t i = 0; i < count; ++i)
        if (!read(depth + 1)) return false;
      return true;
    }
    if (in_.peek() != Type::kMap) return in_.skip();
    if (!in_.map(count)) return false;
    std::string_view type;
    for (size_t i = 0; i < count; ++i) {
      std::string_view name;
      const bool is_named = in_.peek() == Type::kText;
      if (is_named ? !in_.text(name) : !in_.skip()) return false;
      if (name == "__t__" && in_.peek() == Type::kText) {
        if (!in_.text(type)) return false;
      } else if (name == "v" && type == "ObjectKey") {
        if (!read_key()) return false;
      } else if (name == "v" && type == "MemoryLayoutDesc") {
        if (!read_layout()) return false;
      } else if (!read(depth + 1)) {
        return false;
      }
    }
    return true;
  }

 private:
  bool read_key() {
    ObjectKey key;
    size_t fields = 0;
    if (!in_.map(fields)) return false;
    for (size_t i = 0; i < fields; ++i) {
      std::string_view name;
      if (!in_.text(name)) return false;
      const bool is_read = name == "chunk_hash"        ? in_.text(key.hash)
                           : name == "model_name"      ? in_.text(key.model)
                           : name == "kv_rank"         ? in_.integer(key.rank)
                           : name == "object_group_id" ? in_.integer(key.group)
                           : name == "cache_salt"      ? in_.text(key.salt)
                                                       : in_.skip();
      if (!is_read) return false;
    }
    if (key.hash.empty() || arguments_.keys.size() == kCallKeysMax) return false;
    arguments_.keys.push_back(key.digest());
    return true;
  }

  // Tensors: a shape and a type each.
  bool read_layout() {
    std::vector<uint64_t> elements, widths;
    size_t fields = 0;
    if (!in_.map(fields)) return false;
    for (size_t i = 0; i < fields; ++i) {
      std::string_view name;
      if (!in_.text(name)) return false;
      const bool is_read = name == "shapes"   ? read_shapes(elements)
                           : name == "dtypes" ? read_types(widths)
                                              : in_.skip();
      if (!is_read) return false;
    }
    if (arguments_.object_bytes != 0) return true;
    for (size_t i = 0; i < elements.size(); ++i) {
      const uint64_t width = i < widths.size() ? widths[i] : 1;
      arguments_.object_bytes = saturated(arguments_.object_bytes + elements[i] * width);
    }
    return true;
  }

  bool read_shapes(std::vector<uint64_t>& elements) {
    size_t tensors = 0;
    if (!in_.array(tensors)) return false;
    for (size_t i = 0; i < tensors; ++i) {
      size_t dimensions = 0;
      uint64_t product = 1;
      if (!in_.array(dimensions)) return false;
      for (size_t k = 0; k < dimensions; ++k) {
        uint64_t length = 0;
        if (!in_.whole(length)) return false;
        product = length != 0 && product > kBytesMax / length ? kBytesMax : product * length;
      }
      elements.push_back(product);
    }
    return true;
  }

  bool read_types(std::vector<uint64_t>& widths) {
    size_t tensors = 0;
    if (!in_.array(tensors)) return false;
    for (size_t i = 0; i < tensors; ++i) {
      std::string_view dtype;
      if (!in_.text(dtype)) return false;
      widths.push_back(bytes_of_type(dtype));
    }
    return true;
  }

  static constexpr uint64_t kBytesMax = 1ull << 48;
  static uint64_t saturated(uint64_t bytes) { return std::min(bytes, kBytesMax); }

  MsgpackReader& in_;
  Arguments& arguments_;
};

struct Frame {
  std::string_view type, qualname, magic, level;
  uint64_t format = 0, schema = 0;
  double at_s = 0, wall_s = 0;
  Arguments arguments;

  // False: it is no frame.
  bool read(std::string_view bytes) {
    MsgpackReader in(bytes);
    size_t fields = 0;
    if (!in.map(fields)) return false;
    for (size_t i = 0; i < fields; ++i) {
      std::string_view name;
      if (!in.text(name)) return false;
      const bool is_read = name == "type"                   ? in.text(type)
                           : name == "magic"                ? in.text(magic)
                           : name == "level"                ? in.text(level)
                           : name == "qualname"             ? in.text(qualname)
                           : name == "format_version"       ? in.whole(format)
                           : name == "trace_schema_version" ? in.whole(schema)
                           : name == "t_mono"               ? in.number(at_s)
                           : name == "t_wall_start"         ? in.number(wall_s)
                           : name == "args"                 ? ArgumentReader(in, arguments).read(0)
                                                            : in.skip();
      if (!is_read) return false;
    }
    return in.is_at_end() && std::isfinite(at_s) && at_s >= 0 && at_s < kSecondsMax;
  }
};

// The bytes of the next frame; nothing at the end, or where it is cut.
std::optional<std::string_view> take_frame(std::string_view& rest) {
  constexpr size_t kPrefixBytes = 4;
  if (rest.size() < kPrefixBytes) return std::nullopt;
  size_t bytes = 0;
  for (size_t i = 0; i < kPrefixBytes; ++i) bytes = bytes << 8 | uint8_t(rest[i]);
  if (bytes > rest.size() - kPrefixBytes) return std::nullopt;
  const std::string_view frame = rest.substr(kPrefixBytes, bytes);
  rest.remove_prefix(kPrefixBytes + bytes);
  return frame;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class LctReader {
 public:
  explicit LctReader(Recordings& recordings) : recordings_(recordings), actor_(recordings.actors++) {}

  void add(const Frame& frame) {
    std::string_view name = frame.qualname;
    if (!name.starts_with(kPrefix)) return void(++recordings_.unknown);
    name.remove_prefix(kPrefix.size());
    const auto at_ns = uint64_t(frame.at_s * 1e9);
    const std::vector<RecordedKey>& keys = frame.arguments.keys;
    if (name == kReserve) {
      for (const RecordedKey& key : keys) reserved_[key] = {at_ns, frame.arguments.object_bytes};
    } else if (name == kFinish) {
      add_store(keys, at_ns);
    } else if (name == kPrefetch) {
      add_call(Recorded::kMatch, keys, at_ns, int32_t(leading(keys)));
    } else if (name == kEnter) {
      const auto there =
          std::count_if(keys.begin(), keys.end(), [&](const RecordedKey& key) { return stored_.contains(key); });
      add_call(Recorded::kRetrieve, keys, at_ns, int32_t(there));
    } else if (name == kExit || name == kFinishRead) {
      add_call(Recorded::kRelease, {}, at_ns, 0);
    } else {
      ++recordings_.unknown;
    }
  }

 private:
  struct Reserved {
    uint64_t at_ns, bytes;
  };
  template <typename T>
  using OfKey = std::unordered_map<RecordedKey, T, KeyHash, KeyEqual>;

  size_t leading(const std::vector<RecordedKey>& keys) const {
    const auto absent =
        std::find_if(keys.begin(), keys.end(), [&](const RecordedKey& key) { return !stored_.contains(key); });
    return size_t(absent - keys.begin());
  }

  RecordedCall& add_call(Recorded operation, std::vector<RecordedKey> keys, uint64_t at_ns, int32_t result) {
    RecordedCall& call = recordings_.calls.emplace_back();
    call.operation = operation;
    call.actor = actor_;
    call.result = result;
    call.at_ns = at_ns;
    call.keys = std::move(keys);
    return call;
  }

  void add_store(const std::vector<RecordedKey>& keys, uint64_t at_ns) {
    uint64_t from_ns = at_ns, bytes = 0;
    int32_t fresh = 0;
    for (const RecordedKey& key : keys) {
      if (const auto found = reserved_.find(key); found != reserved_.end()) {
        from_ns = std::min(from_ns, found->second.at_ns);
        bytes = std::max(bytes, found->second.bytes);
        reserved_.erase(found);
      }
      fresh += stored_.emplace(key, true).second;
    }
    if (keys.empty()) return;
    RecordedCall& call = add_call(Recorded::kStore, keys, from_ns, keys.size() == 1 ? int32_t(fresh == 0) : fresh);
    call.took_ns = at_ns - from_ns;
    call.block_bytes = std::max<uint64_t>(bytes, 1);
  }

  Recordings& recordings_;
  const uint32_t actor_;
  OfKey<Reserved> reserved_;
  OfKey<bool> stored_;
};

tl::unexpected<Error> bad(const std::string& name, const std::string& what) {
  return failure(EBADMSG, "read " + name + ": " + what);
}

// -- writing ----------------------------------------------------------------------------------------------------------

void put_frame(std::string& out, const std::string& frame) {
  for (int shift = 24; shift >= 0; shift -= 8) out += char(frame.size() >> shift & 0xFF);
  out += frame;
}

void put_type(MsgpackWriter& out, std::string_view type) {
  out.map(2);
  out.text("__t__");
  out.text(type);
  out.text("v");
}

void put_keys(MsgpackWriter& out, const std::vector<RecordedKey>& keys) {
  out.array(keys.size());
  for (const RecordedKey& key : keys) {
    put_type(out, "ObjectKey");
    out.map(4);
    out.text("chunk_hash");
    out.binary({reinterpret_cast<const char*>(&key), sizeof(key)});
    out.text("model_name");
    out.text(kModel);
    out.text("kv_rank");
    out.whole(0);
    out.text("object_group_id");
    out.whole(0);
  }
}

void put_layout(MsgpackWriter& out, uint64_t bytes) {
  put_type(out, "MemoryLayoutDesc");
  out.map(2);
  out.text("shapes");
  out.array(1);
  out.array(1);
  out.whole(bytes);
  out.text("dtypes");
  out.array(1);
  out.text("torch.uint8");
}

// The request of a match, in schema 1 (LMCache 0.5.6) or schema 2, which has memory tags in place of skip_l2.
void put_prefetch(MsgpackWriter& out, const RecordedCall& call, uint32_t schema) {
  out.map(schema == 1 ? 3 : 2);
  out.text("spec");
  put_type(out, "PrefetchTaskSpec");
  out.map(schema == 1 ? 4 : 6);
  out.text("key_groups");
  out.array(1);
  put_type(out, "GroupedObjectKeys");
  out.map(4);
  out.text("keys");
  put_keys(out, call.keys);
  out.text("object_group_id");
  out.whole(0);
  out.text("layout_desc");
  put_layout(out, std::max<uint64_t>(call.block_bytes, 1));
  out.text("sliding_window_size");
  out.negative(-1);  // none
  out.text("num_kv_readers");
  out.whole(1);
  out.text("fetching_policy");
  out.text("prefix");
  out.text("lock_mode");
  put_type(out, "PrefetchLockMode");
  out.text("LOCK");
  if (schema != 1)
    for (const char* name : {"allowed_l1_memory_tags", "allowed_l2_memory_tags"}) {
      out.text(name);
      out.nil();
    }
  out.text("external_request_id");
  out.text("");
  if (schema != 1) return;
  out.text("skip_l2");
  out.boolean(false);
}

// A record at its time; equal times in the order of the calls.
using Records = std::multimap<uint64_t, std::string>;

template <typename PutArguments>
void put_record(Records& records, uint64_t at_ns, double begun_s, std::string_view call,
                const PutArguments& put_arguments) {
  MsgpackWriter out;
  out.map(5);
  out.text("type");
  out.text("record");
  out.text("t_mono");
  out.real(double(at_ns) / 1e9);
  out.text("t_wall");
  out.real(begun_s + double(at_ns) / 1e9);
  out.text("qualname");
  out.text(std::string(kPrefix) + std::string(call));
  out.text("args");
  put_arguments(out);
  std::string frame;
  put_frame(frame, out.bytes());
  records.emplace(at_ns, std::move(frame));
}

std::string header_frame(double begun_s, uint32_t schema) {
  MsgpackWriter out;
  out.map(9);
  out.text("type");
  out.text("header");
  out.text("magic");
  out.binary(kMagic);
  out.text("format_version");
  out.whole(kFormat);
  out.text("level");
  out.text("storage");
  out.text("trace_schema_version");
  out.whole(schema);
  out.text("t_mono_start");
  out.real(0);
  out.text("t_wall_start");
  out.real(begun_s);
  out.text("sm_config_json");
  out.text("");
  out.text("sm_config_digest");
  out.text("");
  std::string frame;
  put_frame(frame, out.bytes());
  return frame;
}

}  // namespace

bool is_lct(std::span<const std::byte> bytes) {
  std::string_view rest = text_of(bytes);
  const auto first = take_frame(rest);
  Frame frame;
  return first && frame.read(*first) && frame.type == "header" && frame.magic == kMagic;
}

Result<void> add_lct(std::span<const std::byte> bytes, const std::string& name, Recordings& recordings) {
  std::string_view rest = text_of(bytes);
  const auto first = take_frame(rest);
  Frame header;
  if (!first || !header.read(*first) || header.type != "header" || header.magic != kMagic)
    return bad(name, "this is no trace of LMCache; expected a header with the magic LMCT");
  if (header.format != kFormat)
    return bad(
        name, "it has format " + std::to_string(header.format) + ", and this program reads " + std::to_string(kFormat));
  if (header.level != "storage")
    return bad(name, "it has the level \"" + std::string(header.level.substr(0, 32)) +
                         "\", and this program reads \"storage\"; record with --trace-level storage");
  if (header.schema > kSchemaMax)  // 0: from before schemas had numbers
    return bad(name, "it has schema " + std::to_string(header.schema) + ", and this program reads 1 and 2");
  if (recordings.begun_unix_ns == 0 && std::isfinite(header.wall_s) && header.wall_s > 0 && header.wall_s < 1e10)
    recordings.begun_unix_ns = uint64_t(header.wall_s * 1e9);
  LctReader reader(recordings);
  while (const auto bytes_of_frame = take_frame(rest)) {
    Frame frame;
    if (frame.read(*bytes_of_frame) && frame.type == "record")
      reader.add(frame);
    else
      recordings.torn_bytes += bytes_of_frame->size();
  }
  recordings.torn_bytes += rest.size();
  return {};
}

Lct lct_of(const Recordings& recordings, uint32_t schema) {
  Lct made;
  Records records;
  const double begun_s = double(recordings.begun_unix_ns) / 1e9;
  for (const RecordedCall& call : recordings.calls) {
    const auto put = [&](uint64_t at_ns, std::string_view name, const auto& put_arguments) {
      put_record(records, at_ns, begun_s, name, put_arguments);
    };
    const auto put_only_keys = [&](MsgpackWriter& out) {
      out.map(1);
      out.text("keys");
      put_keys(out, call.keys);
    };
    const bool is_store = call.operation == Recorded::kStore || call.operation == Recorded::kStoreChain;
    if (call.keys.empty() || call.result < 0) {
      made.left_out += call.operation != Recorded::kRelease;
    } else if (is_store) {
      put(call.at_ns, kReserve, [&](MsgpackWriter& out) {
        out.map(2);
        out.text("keys");
        put_keys(out, call.keys);
        out.text("layout_desc");
        put_layout(out, std::max<uint64_t>(call.block_bytes, 1));
      });
      put(call.at_ns + call.took_ns, kFinish, put_only_keys);
    } else if (call.operation == Recorded::kMatch) {
      put(call.at_ns, kPrefetch, [&](MsgpackWriter& out) { put_prefetch(out, call, schema); });
    } else if (call.operation == Recorded::kRetrieve) {
      put(call.at_ns, kEnter, put_only_keys);
      put(call.at_ns + call.took_ns, kExit, put_only_keys);
    } else {
      ++made.left_out;
    }
  }
  made.bytes = header_frame(begun_s, schema);
  for (const auto& [at_ns, frame] : records) made.bytes += frame;
  return made;
}

}  // namespace maru::replay
