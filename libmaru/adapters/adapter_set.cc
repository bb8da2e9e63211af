#include "libmaru/adapters/adapter_set.h"

#include <cerrno>
#include <cstring>

namespace maru::adapters {
namespace {

constexpr int kTriesMax = 4;  // of an acquire while marud evicts each form as soon as it is made

uint64_t rounded_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

bool is_readable_name(const std::string& name, size_t bytes_max) {
  if (name.empty() || name.size() > bytes_max) return false;
  for (const char character : name)
    if (uint8_t(character) < ' ' || character == 127) return false;
  return true;
}

std::string_view text_of(const char* text, size_t room) { return {text, ::strnlen(text, room)}; }

template <size_t kRoom>
void copy_text(char (&to)[kRoom], std::string_view from) {
  std::memcpy(to, from.data(), std::min(from.size(), kRoom - 1));
  to[std::min(from.size(), kRoom - 1)] = 0;
}

}  // namespace

AdapterSet::AdapterSet(maru_client* client, Wish wish) : client_(client), wish_(std::move(wish)) {}
AdapterSet::~AdapterSet() = default;

int AdapterSet::open(maru_adapters_reason* reason) {
  if (const int status = register_.open(wish_.in_register, reason); status < 0) return status;
  repair_all();
  return 0;
}

int AdapterSet::locked_too_long(maru_adapters_reason* reason) const {
  return fail(reason, ETIMEDOUT, "another process has had the register locked for more than %u ms",
              wish_.in_register.timeout_ms);
}

int AdapterSet::read_files(const std::string& folder, Files* ret_files, maru_adapters_reason* reason) const {
  if (const int status = ret_files->file.open(wish_.root, folder, reason); status < 0) return status;
  const PeftConfig& config = ret_files->file.config();
  const std::string_view base = text_of(register_.head().base_model, sizeof(Head::base_model));
  if (!base.empty() && config.base_model != base)
    return fail(reason, EXDEV, "%s is an adapter of the base model \"%s\"; expected one of \"%.*s\"", folder.c_str(),
                shown(config.base_model).c_str(), int(base.size()), base.data());
  return make_manifest(config, ret_files->file.tensors(), wish_.base, &ret_files->manifest, &ret_files->tensors,
                       reason);
}

int AdapterSet::measure(const Manifest& manifest, Form form, FormSize* ret_size, maru_adapters_reason* reason) const {
  const Head& head = register_.head();
  const std::optional<Placement> placement = place(manifest, form == Form::kWarm ? Element::kInt8 : manifest.element,
                                                   encode_manifest(manifest).size(), head.part_bytes);
  if (!placement)
    return fail(reason, EFBIG,
                "a row or the manifest of the adapter is longer than a part (%llu bytes): make the register with a "
                "larger part_bytes",
                ull{head.part_bytes});
  const uint64_t parts = placement->part_bytes.size();
  ret_size->parts = uint32_t(parts);
  ret_size->bytes = (parts - 1) * rounded_up(head.part_bytes, head.page_bytes) +
                    rounded_up(placement->part_bytes.back(), head.page_bytes);
  return 0;
}

int AdapterSet::load(const std::string& name, const std::string& folder, uint32_t flags, maru_adapters_reason* reason) {
  if (!is_readable_name(name, MARU_ADAPTERS_NAME_BYTES_MAX))
    return fail(reason, EINVAL,
                "the adapter's name has %zu bytes or a control character; expected 1 to %d readable ones", name.size(),
                MARU_ADAPTERS_NAME_BYTES_MAX);
  if (!is_readable_name(folder, MARU_ADAPTERS_FOLDER_BYTES_MAX))
    return fail(reason, EINVAL,
                "the folder's path has %zu bytes or a control character; expected 1 to %d readable ones", folder.size(),
                MARU_ADAPTERS_FOLDER_BYTES_MAX);
  Files files;
  if (const int status = read_files(folder, &files, reason); status < 0) return status;
  FormSize sizes[kForms];
  for (const Form form : {Form::kHot, Form::kWarm})
    if (const int status = measure(files.manifest, form, &sizes[index_of(form)], reason); status < 0) return status;
  Checksum checksum = {};
  if ((flags & MARU_ADAPTERS_LOAD_LAZY) == 0)
    if (const int status = files.file.read_tensors([&] { return std::make_unique<CheckingSink>(files.file.tensors()); },
                                                   &checksum, reason);
        status < 0)
      return status;
  const FileIdentity& identity = files.file.weights_identity();
  const Register::Locked locked = register_.lock();
  if (!locked.ok()) return locked_too_long(reason);
  if (const uint32_t there = register_.find(name); there != register_.entries_max()) {
    const Entry& entry = register_.entry(there);
    const FileIdentity other = {entry.device, entry.inode, entry.file_bytes, entry.modified_ns};
    if (other == identity && entry.headers_hash == files.file.headers_hash()) return 0;
    return fail(reason, EEXIST,
                "the name \"%s\" belongs to the adapter in %.255s, not to that in %s: choose another name, or unload "
                "the first",
                name.c_str(), entry.folder, folder.c_str());
  }
  uint32_t number = 0;
  if (const int status = register_.take_free(&number); status < 0)
    return fail(reason, -status, "no room in the register, which has %u adapters of %u", register_.head().entries_live,
                register_.entries_max());
  Entry& entry = register_.entry(number);
  copy_text(entry.name, name);
  copy_text(entry.folder, folder);
  entry.device = identity.device, entry.inode = identity.inode;
  entry.file_bytes = identity.bytes, entry.modified_ns = identity.modified_ns;
  entry.headers_hash = files.file.headers_hash();
  std::memcpy(entry.checksum, checksum.data(), checksum.size());
  entry.is_checked = (flags & MARU_ADAPTERS_LOAD_LAZY) == 0;
  entry.alpha = files.file.config().alpha;
  entry.rank = files.manifest.rank_max();
  entry.modules = uint32_t(files.manifest.modules.size());
  entry.element = uint32_t(files.manifest.element);
  for (uint32_t form = 0; form < kForms; ++form)
    entry.form_bytes[form] = sizes[form].bytes, entry.form_parts[form] = sizes[form].parts;
  register_.publish(number);
  return 0;
}

int AdapterSet::look_up(const std::string& name, Name* ret_name, maru_adapters_reason* reason) {
  {
    const std::lock_guard guard(mutex_);
    const auto found = names_.find(name);
    if (found != names_.end() && is_same(found->second)) {
      *ret_name = found->second;
      return 0;
    }
  }
  Name found = {};
  {
    const Register::Locked locked = register_.lock();
    if (!locked.ok()) return locked_too_long(reason);
    found.number = register_.find(name);
    if (found.number == register_.entries_max())
      return fail(reason, ENOENT, "no adapter \"%s\" is loaded", shown(name).c_str());
    found.life = register_.entry(found.number).life.load(std::memory_order_relaxed);
  }
  const std::lock_guard guard(mutex_);
  names_[name] = found;
  *ret_name = found;
  return 0;
}

maru_adapter* AdapterSet::own_hold(const Name& name, uint32_t want) {
  const std::lock_guard guard(mutex_);
  for (const Form form : {Form::kHot, Form::kWarm}) {
    if (want == MARU_ADAPTER_EXACT && form != Form::kHot) continue;
    const auto found = holds_.find(form_key(name.number, form));
    if (found == holds_.end() || found->second->life != name.life) continue;
    ++found->second->holds;
    return found->second.get();
  }
  return nullptr;
}

std::shared_ptr<const Shape> AdapterSet::known_shape(const Name& name, Form form) {
  const std::lock_guard guard(mutex_);
  const auto found = shapes_.find(form_key(name.number, form));
  return found != shapes_.end() && found->second.life == name.life ? found->second.shape : nullptr;
}

// The manifest of a form, checked: another process of the pool wrote it.
int AdapterSet::read_shape(const Name& name, Form form, std::span<const std::byte> first_part, Shape* shape) const {
  const Entry& entry = register_.entry(name.number);
  uint64_t manifest_bytes = 0;
  std::optional<Manifest> manifest = decode_manifest(first_part, &manifest_bytes);
  if (!manifest || manifest->element != element_of(entry, form) || manifest->modules.size() != entry.modules)
    return -EBADMSG;
  std::optional<Placement> placement = place(*manifest, manifest->element, manifest_bytes, part_bytes());
  if (!placement || placement->part_bytes.size() != shape->keys.size()) return -EBADMSG;
  shape->manifest = std::move(*manifest);
  shape->placement = std::move(*placement);
  return 0;
}

int AdapterSet::hold(const Name& name, Form form, maru_adapter** ret_adapter) {
  std::shared_ptr<const Shape> shape = known_shape(name, form);
  std::shared_ptr<Shape> fresh;
  if (shape == nullptr) fresh = std::make_shared<Shape>(register_.entry(name.number), form, part_bytes());
  HeldParts parts;
  if (const int status = parts.hold(client_, shape ? shape->keys : fresh->keys, part_bytes()); status < 0)
    return status;
  if (fresh != nullptr)
    if (const int status = read_shape(name, form, parts.first(), fresh.get()); status < 0) return status;
  // The entry was read without the lock: the copy is good only if the entry still has the same life.
  if (!is_same(name)) return -ENOENT;
  if (fresh != nullptr) shape = fresh;
  if (parts.last_bytes() != shape->placement.part_bytes.back()) return -EMSGSIZE;
  auto made = std::make_unique<maru_adapter>(this, name.number, name.life, form, 0, std::move(shape), std::move(parts));
  std::unique_ptr<maru_adapter> other;  // ends its pin without the lock
  const std::lock_guard guard(mutex_);
  if (fresh != nullptr) shapes_[form_key(name.number, form)] = {name.life, fresh};
  std::unique_ptr<maru_adapter>& place = holds_[form_key(name.number, form)];
  if (place != nullptr && place->life == name.life) {
    other = std::move(made);
  } else {
    // An older life that is still held goes with its last release.
    (void)place.release();
    place = std::move(made);
  }
  ++place->holds;
  *ret_adapter = place.get();
  return 0;
}

int AdapterSet::acquire(const std::string& name, uint32_t want, maru_adapter** ret_adapter,
                        maru_adapters_reason* reason) {
  Name own = {};
  if (const int status = look_up(name, &own, reason); status < 0) return status;
  Entry& entry = register_.entry(own.number);
  const uint64_t now_ms = wish_.now_ms();
  count_use(entry, register_.rules(), now_ms);
  const auto count_found = [&](Form form) {
    register_.count(form == Form::kHot ? format::kAdapterAcquiresHot : format::kAdapterAcquiresWarm);
  };
  if (maru_adapter* const held = own_hold(own, want)) {
    count_found(held->form);
    *ret_adapter = held;
    return 0;
  }
  Fresh fresh;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    for (const Form form : {Form::kHot, Form::kWarm}) {
      if (want == MARU_ADAPTER_EXACT && form != Form::kHot) continue;
      if (!register_.is_resident(own.number, form) ||
          entry.words[index_of(form)].doing.load(std::memory_order_relaxed) == uint32_t(Doing::kMaking))
        continue;
      const int status = hold(own, form, ret_adapter);
      if (status == 0 && tries == 0) count_found(form);
      if (status == 0) return 0;
      if (!is_same(own)) return fail(reason, ENOENT, "the adapter \"%s\" was unloaded meanwhile", name.c_str());
      if (status != -ENOENT && status != -EBADMSG && status != -EMSGSIZE)
        return fail(reason, -status, "cannot hold \"%s\" in the pool: %s", name.c_str(), std::strerror(-status));
      forget_evicted(own, form);
    }
    if (tries == 0) register_.count(format::kAdapterAcquiresCold);
    const Form form = want == MARU_ADAPTER_EXACT
                          ? Form::kHot
                          : form_for(register_.rules(), window_uses(entry, register_.rules(), now_ms));
    if (const int status = bring(own, form, Pressure::kDemand, fresh, reason); status < 0 && status != -EAGAIN)
      return status;
  }
  return fail(reason, ENOSPC,
              "marud evicted \"%s\" %d times before it could be held: the pool is too small for its load", name.c_str(),
              kTriesMax);
}

void AdapterSet::release(maru_adapter* adapter) {
  std::unique_ptr<maru_adapter> last;  // ends its pin without the lock
  const std::lock_guard guard(mutex_);
  if (--adapter->holds > 0) return;
  const auto found = holds_.find(form_key(adapter->number, adapter->form));
  if (found != holds_.end() && found->second.get() == adapter) {
    last = std::move(found->second);
    holds_.erase(found);
  } else {
    last.reset(adapter);
  }
}

bool AdapterSet::is_there(uint32_t number, Form form) const {
  const PartKeys keys(register_.entry(number), form, part_bytes());
  return keys.size() > 0 && maru_exists(client_, &keys[keys.size() - 1]) == 1;
}

bool AdapterSet::is_own(uint32_t number, Form form) {
  const std::lock_guard guard(mutex_);
  return holds_.contains(form_key(number, form));
}

int AdapterSet::prefetch(const std::string& name, uint32_t want) {
  Name own = {};
  if (const int status = look_up(name, &own, nullptr); status < 0) return status;
  const Entry& entry = register_.entry(own.number);
  Fresh fresh;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    for (const Form form : {Form::kHot, Form::kWarm}) {
      if (want == MARU_ADAPTER_EXACT && form != Form::kHot) continue;
      if (!register_.is_resident(own.number, form) ||
          entry.words[index_of(form)].doing.load(std::memory_order_relaxed) == uint32_t(Doing::kMaking))
        continue;
      if (is_there(own.number, form)) return 0;
      forget_evicted(own, form);
    }
    const uint32_t uses = window_uses(entry, register_.rules(), wish_.now_ms());
    const Form form = want == MARU_ADAPTER_EXACT ? Form::kHot : form_for(register_.rules(), uses);
    if (const int status = bring(own, form, Pressure::kDemand, fresh, nullptr); status < 0 && status != -EAGAIN)
      return status;
  }
  return -ENOSPC;
}

void AdapterSet::fill_info(uint32_t number, maru_adapter_info* ret_info) const {
  const Entry& entry = register_.entry(number);
  maru_adapter_info info = {};
  info.size = sizeof(info);
  copy_text(info.name, text_of(entry.name, sizeof(entry.name)));
  copy_text(info.folder, text_of(entry.folder, sizeof(entry.folder)));
  info.tier = register_.is_resident(number, Form::kHot)    ? MARU_ADAPTER_HOT
              : register_.is_resident(number, Form::kWarm) ? MARU_ADAPTER_WARM
                                                           : MARU_ADAPTER_COLD;
  info.rank = entry.rank;
  info.modules = entry.modules;
  info.dtype = entry.element;
  info.alpha = entry.alpha;
  info.file_bytes = entry.file_bytes;
  info.hot_bytes = entry.form_bytes[index_of(Form::kHot)];
  info.warm_bytes = entry.form_bytes[index_of(Form::kWarm)];
  info.hot_parts = entry.form_parts[index_of(Form::kHot)];
  info.warm_parts = entry.form_parts[index_of(Form::kWarm)];
  std::memcpy(info.checksum, entry.checksum, sizeof(info.checksum));
  info.window_uses = window_uses(entry, register_.rules(), wish_.now_ms());
  *ret_info = info;
}

int AdapterSet::find(const std::string& name, maru_adapter_info* ret_info) {
  const Register::Locked locked = register_.lock();
  if (!locked.ok()) return -ETIMEDOUT;
  const uint32_t number = register_.find(name);
  if (number == register_.entries_max()) return -ENOENT;
  fill_info(number, ret_info);
  return 0;
}

int AdapterSet::next(uint64_t* cursor, maru_adapter_info* ret_info) {
  const Register::Locked locked = register_.lock();
  if (!locked.ok()) return -ETIMEDOUT;
  const uint32_t used = std::min(register_.head().entries_used, register_.entries_max());
  for (uint64_t number = *cursor; number < used; ++number) {
    if (!register_.is_live(uint32_t(number))) continue;
    fill_info(uint32_t(number), ret_info);
    *cursor = number + 1;
    return 0;
  }
  return -ENOENT;
}

int AdapterSet::describe(const maru_adapter& adapter, maru_adapter_info* ret_info) {
  const Register::Locked locked = register_.lock();
  if (!locked.ok()) return -ETIMEDOUT;
  if (register_.entry(adapter.number).life.load(std::memory_order_relaxed) != adapter.life) return -ESTALE;
  fill_info(adapter.number, ret_info);
  ret_info->tier = adapter.form == Form::kHot ? MARU_ADAPTER_HOT : MARU_ADAPTER_WARM;
  return 0;
}

int AdapterSet::statistics(maru_adapters_statistics* ret_statistics) {
  const Register::Locked locked = register_.lock();
  if (!locked.ok()) return -ETIMEDOUT;
  const Head& head = register_.head();
  constexpr uint32_t kHot = index_of(Form::kHot), kWarm = index_of(Form::kWarm);
  maru_adapters_statistics s = {};
  s.size = sizeof(s);
  s.adapters = head.entries_live;
  s.hot_adapters = head.resident_count[kHot], s.warm_adapters = head.resident_count[kWarm];
  s.hot_bytes = head.resident_bytes[kHot], s.warm_bytes = head.resident_bytes[kWarm];
  s.hot_bytes_max = head.rules.bytes_max[kHot], s.warm_bytes_max = head.rules.bytes_max[kWarm];
  s.hot_adapters_max = head.rules.adapters_max[kHot], s.warm_adapters_max = head.rules.adapters_max[kWarm];
  s.acquires_hot = register_.total(format::kAdapterAcquiresHot);
  s.acquires_warm = register_.total(format::kAdapterAcquiresWarm);
  s.acquires_cold = register_.total(format::kAdapterAcquiresCold);
  s.loads = register_.total(format::kAdapterLoads);
  s.loaded_bytes = register_.total(format::kAdapterLoadedBytes);
  s.tier_loads = register_.total(format::kAdapterTierLoads);
  s.promotions = register_.total(format::kAdapterPromotions);
  s.demotions = register_.total(format::kAdapterDemotions);
  s.evicted = register_.total(format::kAdapterEvicted);
  s.waits = register_.total(format::kAdapterWaits);
  s.refusals = register_.total(format::kAdapterRefusals);
  s.repairs = register_.total(format::kAdapterRepairs);
  s.register_bytes = head.file_bytes;
  *ret_statistics = s;
  return 0;
}

}  // namespace maru::adapters
