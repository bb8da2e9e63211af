// Making and removing forms, each under an intent in the register.
#include "libmaru/adapters/adapter_set.h"
#include "libmaru/adapters/form_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace maru::adapters {
namespace {

uint32_t doing_of(const Entry& entry, Form form) {
  return entry.words[index_of(form)].doing.load(std::memory_order_relaxed);
}

constexpr uint32_t kLookMs = 100;  // how often a process that waits asks whether the other lives

}  // namespace

// With the lock: begins an intent of this process. False where there is one already.
bool AdapterSet::begin(const Name& name, Form form, Doing doing) {
  if (doing_of(register_.entry(name.number), form) != uint32_t(Doing::kNothing)) return false;
  {
    const std::lock_guard guard(mutex_);
    own_intents_.insert(form_key(name.number, form));
  }
  register_.begin(name.number, form, doing);
  return true;
}

// Without the lock: ends it. When another process keeps the lock for too long, the intent becomes stale, and the next process
// that meets it repairs the form.
void AdapterSet::end(const Name& name, Form form, bool is_resident) {
  const Register::Locked locked = register_.lock();
  if (locked.ok()) {
    // A form that could not be removed is left alone for a while, as if it had just come.
    if (is_resident) register_.entry(name.number).since_ms[index_of(form)] = wish_.now_ms();
    register_.set_resident(name.number, form, is_resident, wish_.now_ms());
    register_.end(name.number, form);
  }
  // Before the lock is free: then another thread may begin an intent for the same form.
  const std::lock_guard guard(mutex_);
  own_intents_.erase(form_key(name.number, form));
}

bool AdapterSet::is_stale(uint32_t number, Form form) {
  const Entry& entry = register_.entry(number);
  if (doing_of(entry, form) == uint32_t(Doing::kNothing)) return false;
  const uint32_t owner = entry.words[index_of(form)].owner.load(std::memory_order_relaxed);
  if (owner != register_.own_number()) return register_.is_dead(owner);
  const std::lock_guard guard(mutex_);
  return !own_intents_.contains(form_key(number, form));
}

// Makes a form, or waits until another process has finished its work on it. 0: it was made; -EAGAIN: look again.
int AdapterSet::bring(const Name& name, Form form, Pressure pressure, Fresh& ret_fresh, maru_adapters_reason* reason) {
  {
    const Register::Locked locked = register_.lock();
    if (!locked.ok()) return locked_too_long(reason);
    if (!is_same(name)) return fail(reason, ENOENT, "the adapter was unloaded meanwhile");
    const bool is_idle = doing_of(register_.entry(name.number), form) == uint32_t(Doing::kNothing);
    if (is_idle && register_.is_resident(name.number, form)) return -EAGAIN;
    // From here on the form counts in the budget, so that two that are made at a time do not pass it together.
    if (is_idle) register_.set_resident(name.number, form, true, wish_.now_ms());
    if (!begin(name, form, Doing::kMaking)) pressure = Pressure::kWait;
  }
  if (pressure == Pressure::kWait) return wait_for_other(name, form, reason);
  Intent intent(*this, name, form, false);
  int status = 0;
  try {
    step(Step::kMakingBegun);
    status = make(name.number, form, pressure, ret_fresh, reason);
  } catch (const std::bad_alloc&) {
    status = fail(reason, ENOMEM, "this process has no memory left to make the adapter's form");
  }
  if (status < 0) {
    ret_fresh.let_go();
    (void)take_out(name.number, form);
  }
  intent.set_resident(status == 0);
  return status;
}

int AdapterSet::wait_for_other(const Name& name, Form form, maru_adapters_reason* reason) {
  register_.count(format::kAdapterWaits);
  const uint32_t timeout_ms = wish_.in_register.timeout_ms;
  for (uint32_t waited_ms = 0; waited_ms < timeout_ms; waited_ms += kLookMs) {
    const uint32_t seen = doing_of(register_.entry(name.number), form);
    if (seen == uint32_t(Doing::kNothing) || !is_same(name)) return -EAGAIN;
    if (is_stale(name.number, form)) {
      repair(name.number, form);
      return -EAGAIN;
    }
    if (register_.wait_for_change(register_.entry(name.number), form, seen, kLookMs)) return -EAGAIN;
  }
  return fail(reason, ETIMEDOUT, "another process has loaded or removed the adapter for more than %u ms", timeout_ms);
}

bool AdapterSet::has_room(Form form) const {
  const Head& head = register_.head();
  const uint32_t at = index_of(form);
  return head.resident_count[at] <= head.rules.adapters_max[at] && head.resident_bytes[at] <= head.rules.bytes_max[at];
}

// With the lock: the forms that may go for this one, the first first. A request takes forms that have just come only when
// no other form is left. The rules take no form that has just come, and only forms that are clearly less used.
std::vector<AdapterSet::Name> AdapterSet::victims(uint32_t number, Form form, Pressure pressure) {
  struct Candidate {
    Name name;
    bool is_new;
    uint32_t uses;
    uint64_t last_use_ms;
  };
  const uint64_t now_ms = wish_.now_ms();
  const uint32_t own_uses = window_uses(register_.entry(number), register_.rules(), now_ms);
  std::vector<Candidate> candidates;
  for (const uint32_t other : register_.residents(form)) {
    if (other == number || other >= register_.entries_max()) continue;
    const Entry& entry = register_.entry(other);
    if (doing_of(entry, form) != uint32_t(Doing::kNothing) || is_own(other, form)) continue;
    const Standing standing = standing_of(other, now_ms);
    const bool is_new = now_ms - standing.since_ms[index_of(form)] < register_.rules().stay_ms;
    if (pressure == Pressure::kRules && (is_new || !is_clearly_more_used(own_uses, standing.uses))) continue;
    candidates.push_back(
        {{other, entry.life.load(std::memory_order_relaxed)}, is_new, standing.uses, standing.last_use_ms});
  }
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return std::tie(a.is_new, a.uses, a.last_use_ms) < std::tie(b.is_new, b.uses, b.last_use_ms);
  });
  std::vector<Name> names;
  for (const Candidate& candidate : candidates) names.push_back(candidate.name);
  return names;
}

int AdapterSet::make_room(uint32_t number, Form form, Pressure pressure, maru_adapters_reason* reason) {
  std::vector<Name> candidates;
  {
    const Register::Locked locked = register_.lock();
    if (!locked.ok()) return locked_too_long(reason);
    if (has_room(form)) return 0;
    candidates = victims(number, form, pressure);
  }
  for (const Name& victim : candidates) {
    if (remove(victim, form) == 0 && form == Form::kHot) register_.count(format::kAdapterDemotions);
    const Register::Locked locked = register_.lock();
    if (!locked.ok()) return locked_too_long(reason);
    if (has_room(form)) return 0;
  }
  const Head& head = register_.head();
  const uint32_t at = index_of(form);
  register_.count(format::kAdapterRefusals);
  return fail(reason, EDQUOT,
              "the %s budget (%llu adapters, %llu bytes) is used up, and processes hold what is there: release some, "
              "or raise it",
              form == Form::kHot ? "HOT" : "WARM", ull{head.rules.adapters_max[at]}, ull{head.rules.bytes_max[at]});
}

int AdapterSet::make(uint32_t number, Form form, Pressure pressure, Fresh& fresh, maru_adapters_reason* reason) {
  if (const int status = make_room(number, form, pressure, reason); status < 0) return status;
  const Name name = {number, register_.entry(number).life.load(std::memory_order_relaxed)};
  fresh.let_go();  // forms of an earlier attempt
  if (form == Form::kWarm && register_.is_resident(number, Form::kHot) &&
      make_from_hot(name, fresh.parts.emplace(client_), reason) == 0)
    return 0;
  if (!wish_.tier_socket.empty() && make_from_tier(number, form, fresh.tier) == 0) return 0;
  return make_from_file(number, form, fresh.parts.emplace(client_), reason);
}

// The keys have the weights' checksum, so a tier has these very weights or none, whichever machine and time they are from. It
// needs no look at the file. Of a file that was loaded unread the library asks no tier.
int AdapterSet::make_from_tier(uint32_t number, Form form, TierHold& tier) const {
  if (register_.entry(number).is_checked == 0) return -ENOENT;
  const PartKeys keys(register_.entry(number), form, part_bytes());
  uint64_t bytes = 0;
  const int status = tier.load(wish_.tier_socket, keys, wish_.in_register.timeout_ms, &bytes);
  if (status < 0) return status;
  register_.count(format::kAdapterLoads);
  register_.count(format::kAdapterTierLoads);
  register_.count(format::kAdapterLoadedBytes, bytes);
  step(Step::kStored);
  return 0;
}

int AdapterSet::make_from_file(uint32_t number, Form form, NewParts& parts, maru_adapters_reason* reason) {
  Entry& entry = register_.entry(number);
  Files files;
  const std::string folder(entry.folder, ::strnlen(entry.folder, sizeof(entry.folder)));
  if (const int status = read_files(folder, &files, reason); status < 0) return status;
  const FileIdentity identity = {entry.device, entry.inode, entry.file_bytes, entry.modified_ns};
  if (files.file.weights_identity() != identity || files.file.headers_hash() != entry.headers_hash)
    return fail(reason, ESTALE, "the files in %s are not those that were loaded: unload the adapter, and load it again",
                folder.c_str());
  Manifest manifest = files.manifest;
  manifest.element = element_of(entry, form);
  const std::optional<Placement> placement =
      place(manifest, manifest.element, encode_manifest(manifest).size(), part_bytes());
  const PartKeys keys(entry, form, part_bytes());
  if (!placement || placement->part_bytes.size() != keys.size())
    return fail(reason, EBADMSG, "the register does not agree with the files in %s: remove it", folder.c_str());
  if (const int status = parts.allocate(*placement, part_bytes()); status < 0)
    return fail(reason, -status, "the pool has no room for %llu bytes: %s", ull{entry.form_bytes[index_of(form)]},
                std::strerror(-status));
  step(Step::kAllocated);
  // Which module and matrix a tensor is.
  std::vector<std::pair<size_t, bool>> roles(files.file.tensors().size());
  for (size_t module = 0; module < files.tensors.size(); ++module) {
    roles[files.tensors[module].a] = {module, true};
    roles[files.tensors[module].b] = {module, false};
  }
  const FormPlan plan = {manifest, *placement, files.manifest.element, parts};
  if (const int status =
          files.file.read_tensors([&] { return std::make_unique<FormSink>(plan, roles); }, &manifest.checksum, reason);
      status < 0)
    return status;
  if (entry.is_checked == 1 && !std::equal(manifest.checksum.begin(), manifest.checksum.end(), entry.checksum))
    return fail(reason, ESTALE,
                "the weights in %s are not those that were loaded: unload the adapter, and load it again",
                folder.c_str());
  write_manifest(plan);
  step(Step::kFilled);
  if (const int status = parts.store(keys, [&](size_t) { step(Step::kStoringPart); }); status < 0)
    return fail(reason, -status, "cannot store the adapter in the pool: %s", std::strerror(-status));
  step(Step::kStored);
  register_.count(format::kAdapterLoads);
  register_.count(format::kAdapterLoadedBytes, entry.file_bytes);
  const Register::Locked locked = register_.lock();
  if (locked.ok()) std::memcpy(entry.checksum, manifest.checksum.data(), manifest.checksum.size());
  return 0;
}

int AdapterSet::make_from_hot(const Name& name, NewParts& parts, maru_adapters_reason* reason) {
  maru_adapter* hot = nullptr;
  if (const int status = hold(name, Form::kHot, &hot); status < 0) return status;
  const std::unique_ptr<maru_adapter, void (*)(maru_adapter*)> held(hot,
                                                                    [](maru_adapter* own) { own->set->release(own); });
  const Entry& entry = register_.entry(name.number);
  Manifest manifest = hot->shape->manifest;
  const Element source = manifest.element;
  manifest.element = Element::kInt8;
  const std::optional<Placement> placement =
      place(manifest, manifest.element, encode_manifest(manifest).size(), part_bytes());
  const PartKeys keys(entry, Form::kWarm, part_bytes());
  if (!placement || placement->part_bytes.size() != keys.size())
    return fail(reason, EBADMSG, "the register is damaged");
  if (const int status = parts.allocate(*placement, part_bytes()); status < 0) return status;
  step(Step::kAllocated);
  const FormPlan plan = {manifest, *placement, source, parts};
  write_form(plan, hot->shape->placement, hot->parts.parts());
  write_manifest(plan);
  step(Step::kFilled);
  const int status = parts.store(keys, [&](size_t) { step(Step::kStoringPart); });
  if (status == 0) step(Step::kStored);
  return status;
}

// The parts alone; the register is the caller's.
int AdapterSet::take_out(uint32_t number, Form form) const {
  const PartKeys keys(register_.entry(number), form, part_bytes());
  return remove_parts(client_, keys, [&] { step(Step::kDeepestRemoved); });
}

int AdapterSet::remove(const Name& name, Form form, Rest rest) {
  {
    const Register::Locked locked = register_.lock();
    if (!locked.ok()) return -ETIMEDOUT;
    if (!is_same(name) || !register_.is_resident(name.number, form)) return -ENOENT;
    if (is_own(name.number, form) || !begin(name, form, Doing::kRemoving)) return -EBUSY;
  }
  Intent intent(*this, name, form, true);
  step(Step::kRemovingBegun);
  const int status = rest == Rest::kLeave ? 0 : take_out(name.number, form);
  if (status == 0) step(Step::kPartsRemoved);
  intent.set_resident(status < 0);
  return status;
}

// The register says that a form is there, and the pool says that it is not. Where a tier may have it, the parts that are left
// stay: a tier forgets a block that a client deletes.
void AdapterSet::forget_evicted(const Name& name, Form form) {
  if (is_there(name.number, form)) return;
  if (remove(name, form, wish_.tier_socket.empty() ? Rest::kTake : Rest::kLeave) == 0)
    register_.count(format::kAdapterEvicted);
}

void AdapterSet::repair(uint32_t number, Form form) {
  Name name = {number, 0};
  {
    const Register::Locked locked = register_.lock();
    if (!locked.ok() || !is_stale(number, form)) return;
    name.life = register_.entry(number).life.load(std::memory_order_relaxed);
    const std::lock_guard guard(mutex_);
    own_intents_.insert(form_key(number, form));
    register_.begin(number, form, Doing::kRemoving);
  }
  // A form that the dead process stored may be whole, and held by other processes by now: then it stays.
  Intent intent(*this, name, form, false);
  intent.set_resident(take_out(number, form) < 0);
  register_.count(format::kAdapterRepairs);
}

void AdapterSet::repair_all() {
  std::vector<std::pair<uint32_t, Form>> stale;
  {
    const Register::Locked locked = register_.lock();
    if (!locked.ok()) return;
    for (const Form form : {Form::kHot, Form::kWarm})
      for (const uint32_t number : register_.residents(form))
        if (number < register_.entries_max() && is_stale(number, form)) stale.emplace_back(number, form);
  }
  for (const auto& [number, form] : stale) repair(number, form);
}

int AdapterSet::unload(const std::string& name, maru_adapters_reason* reason) {
  Name own = {};
  if (const int status = look_up(name, &own, reason); status < 0) return status;
  const auto busy = [&](const char* why) {
    return fail(reason, EBUSY, "the adapter \"%s\" %s: unload it later", name.c_str(), why);
  };
  for (const Form form : {Form::kHot, Form::kWarm}) {
    if (is_stale(own.number, form)) repair(own.number, form);
    if (is_own(own.number, form)) return busy("is held by this process");
    const int status = remove(own, form);
    if (status == -EBUSY) return busy("is held, or loaded, by a process");
    if (status < 0 && status != -ENOENT)
      return fail(reason, -status, "cannot take \"%s\" out of the pool: %s", name.c_str(), std::strerror(-status));
  }
  const Register::Locked locked = register_.lock();
  if (!locked.ok()) return locked_too_long(reason);
  if (!is_same(own)) return fail(reason, ENOENT, "the adapter \"%s\" was unloaded meanwhile", name.c_str());
  for (const Form form : {Form::kHot, Form::kWarm})
    if (register_.is_resident(own.number, form) ||
        doing_of(register_.entry(own.number), form) != uint32_t(Doing::kNothing))
      return busy("was wanted again meanwhile");
  register_.forget(own.number);
  return 0;
}

}  // namespace maru::adapters
