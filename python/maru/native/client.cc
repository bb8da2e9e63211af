#include "client.h"

#include "arrays.h"
#include "errors.h"
#include "found.h"
#include "keys.h"
#include "pins.h"
#include "records.h"

#include <algorithm>
#include <cerrno>
#include <list>
#include <span>
#include <vector>

namespace py = pybind11;

namespace maru_python {
namespace {

// From so many keys on a call takes more than a microsecond, which is long beside giving up the GIL and asking for it again: to
// ask whether digests, or texts, which have to be hashed, exist; to match a prefix of blocks that are no chain, or to pin
// blocks. And from so many bytes of texts to hash.
constexpr size_t kManyDigests = 64, kManyTexts = 16, kManyMatched = 8, kManyBytes = 1024;

bool takes_long(const OneKey& key) { return key.get()->size > kManyBytes; }

// `many`: from so many keys on.
bool takes_long(const KeyBatch& batch, size_t many) {
  if (batch.size() >= many) return true;
  if (batch.is_array()) return false;  // digests
  size_t bytes = 0;
  for (size_t i = 0; i < batch.size(); ++i) bytes += batch.bytes_of(i);
  return bytes > kManyBytes;
}

template <typename F>
int run(bool gives_up_gil, F&& call) {
  if (!gives_up_gil) return call();
  const WithoutGil released;
  return call();
}

// A list of True and False, `yes` of them True. The references to these two are counted once for the whole list; one by one
// each would wait for the one before.
py::list list_of(std::span<const uint8_t> truths, size_t yes) {
  const size_t n = truths.size();
  py::list result = new_unfilled_list(n);
  PyObject** const items = reinterpret_cast<PyListObject*>(result.ptr())->ob_item;
  PyObject* const values[] = {Py_False, Py_True};
  if (yes == 0 || yes == n)  // what connectors ask mostly: all of a prefix, or none
    std::fill_n(items, n, values[yes != 0]);
  else
    for (size_t i = 0; i < n; ++i) items[i] = values[truths[i] & 1];
  Py_SET_REFCNT(Py_True, Py_REFCNT(Py_True) + Py_ssize_t(yes));  // does nothing where they are immortal
  Py_SET_REFCNT(Py_False, Py_REFCNT(Py_False) + Py_ssize_t(n - yes));
  return result;
}

py::object array_of(const std::vector<uint8_t>& truths) {
  uint8_t* data = nullptr;
  py::object result = new_truths(Py_ssize_t(truths.size()), &data);
  std::copy(truths.begin(), truths.end(), data);
  return result;
}

// Of a block that was pinned. Releases it when there is no memory.
std::shared_ptr<Hold> hold_of(const std::shared_ptr<Attachment>& attachment, const maru_view& view) {
  try {
    return std::make_shared<PinHold>(attachment, view);
  } catch (...) {
    attachment->give_back(false, [&](maru_client* client) { maru_release(client, &view); });
    throw;
  }
}

}  // namespace

// -- attaching --------------------------------------------------------------------------------------------------------

py::object Client::follow(const py::kwargs& options) const {
  attachment().open();  // or ClosedError
  const auto text = [](const std::optional<std::string>& given) {
    return given ? py::object(py::str(*given)) : py::object(py::none());
  };
  return py::module_::import("maru.follow").attr("Follower")(text(socket_path_), text(pool_), **options);
}

Client::Client(const std::optional<std::string>& socket_path, const std::optional<std::string>& pool,
               uint32_t timeout_ms, uint32_t thread_cache_pages, bool first_fit, bool session_thread, bool read_only)
    : socket_path_(socket_path), pool_(pool) {
  for (const auto& text : {socket_path, pool})
    if (text && text->find('\0') != std::string::npos)
      raise_named("InvalidArgumentError", "The path of a socket and the name of a pool have no null character.");
  if (socket_path && socket_path->empty())
    raise_named("InvalidArgumentError",
                "The path of a socket is empty: name marud's socket, or leave socket_path out.");
  maru_attach_options options{};
  options.size = sizeof(options);
  options.socket_path = socket_path ? socket_path->c_str() : nullptr;
  options.pool = pool ? pool->c_str() : nullptr;
  options.timeout_ms = timeout_ms;
  options.thread_cache_pages = thread_cache_pages;
  options.flags = (first_fit ? uint32_t{MARU_ATTACH_FIRST_FIT} : 0u) |
                  (session_thread ? 0u : uint32_t{MARU_ATTACH_NO_SESSION_THREAD}) |
                  (read_only ? uint32_t{MARU_ATTACH_READ_ONLY} : 0u);
  maru_client* client = nullptr;
  int status = 0;
  {
    const WithoutGil released;
    status = maru_attach(&options, &client);
  }
  check(status, "maru_attach");
  try {
    attachment_ = std::make_shared<Attachment>(client);
  } catch (...) {
    const WithoutGil released;
    maru_detach(client);
    throw;
  }
  maru_geometry shape{};
  shape.size = sizeof(shape);
  verifies_ = maru_get_geometry(client, &shape) == 0 && shape.checksums != 0;
}

void Client::refuse() {
  raise_named("ClosedError", "This Client was never attached: its __init__ was not called. Make a new Client.");
}

void Client::reattach() {
  const Use use(attachment());
  int status = 0;
  {
    const WithoutGil released;
    status = maru_reattach(use.client());
  }
  check(status, "maru_reattach");
}

uint64_t Client::tenant(py::handle name) const {
  if (!PyUnicode_Check(name.ptr()))
    raise_named("InvalidArgumentError", "The name of a tenant is a str of 1 to 64 bytes.");
  return tenant_of(attachment().open(), name);
}

py::object Client::geometry() const {
  maru_geometry g{};
  g.size = sizeof(g);
  check(maru_get_geometry(attachment().open(), &g), "maru_get_geometry");
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  return record(Record::kGeometry,
                Py_BuildValue("(KKKKKIIIIy#OKKI)", number(g.pool_bytes), number(g.control_bytes), number(g.page_bytes),
                              number(g.pages), number(g.region_pages), g.lanes, g.lane, g.pins_max, g.key_bytes_max,
                              reinterpret_cast<const char*>(g.uuid), Py_ssize_t(sizeof(g.uuid)),
                              g.checksums != 0 ? Py_True : Py_False, number(g.user_regions_max),
                              number(g.user_bytes_max), g.metadata_bytes_max));
}

// The key of a copy, as Python has it: bytes or a Digest.
static py::object name_of(const maru_key_copy& key) {
  const auto* const data = reinterpret_cast<const char*>(key.data);
  return key.kind == MARU_KEY_BYTES ? py::bytes(data, key.size) : digest_of(data, key.size);
}

py::object Client::block_info(maru_block block) const {
  const Use use(attachment());
  maru_block_info info{};
  info.size = sizeof(info);
  maru_key_copy key;
  const int status = maru_get_block_info(use.client(), block, &info, &key);
  if (status == -ENOENT) return py::none();
  check(status, "maru_get_block_info");
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  return record(Record::kBlockInfo,
                Py_BuildValue("(OKKIIIKIKK)", name_of(key).ptr(), number(info.tenant), number(info.parent), info.depth,
                              info.priority, info.content_type, number(info.bytes), info.metadata_bytes,
                              number(info.stored_ms), number(info.expires_ms)));
}

py::tuple Client::count_blocks() const {
  const Use use(attachment());
  maru_block_counts counts{};
  counts.size = sizeof(counts);
  int status = 0;
  {
    const WithoutGil released;
    status = maru_count_blocks(use.client(), &counts);
  }
  check(status, "maru_count_blocks");
  return py::make_tuple(counts.blocks, counts.held, counts.used_pages, counts.free_pages);
}

void Client::remove_block(maru_block block, bool unpinned) const {
  const Use use(attachment());
  int status = 0;
  {
    const WithoutGil released;
    status = maru_delete_block(use.client(), block, unpinned ? MARU_DELETE_UNPINNED : 0);
  }
  check(status, "maru_delete_block");
}

py::object Client::statistics() const {
  const Use use(attachment());
  maru_statistics s{};
  s.size = sizeof(s);
  int status = 0;
  {
    const WithoutGil released;  // it may wait for a thread that looks for memory
    status = maru_get_statistics(use.client(), &s);
  }
  check(status, "maru_get_statistics");
  const uint64_t totals[] = {s.exists_keys,  s.exists_hits,   s.retrieve_hits, s.retrieve_misses,  s.match_keys,
                             s.match_blocks, s.stores,        s.stored_bytes,  s.duplicates,       s.deletes,
                             s.pin_full,     s.registry_full, s.revives,       s.search_fallbacks, s.checksum_errors,
                             s.rents,        s.pins,          s.regions,       s.pages_cached,     s.evicted,
                             s.evicted_lost, s.regions_taken};
  py::object numbers = py::reinterpret_steal<py::object>(PyTuple_New(Py_ssize_t(std::size(totals))));
  for (size_t i = 0; numbers && i < std::size(totals); ++i) {
    PyObject* const number = PyLong_FromUnsignedLongLong(totals[i]);
    if (number == nullptr) throw py::error_already_set();
    PyTuple_SET_ITEM(numbers.ptr(), Py_ssize_t(i), number);
  }
  return record(Record::kStatistics, numbers.release().ptr());
}

py::list Client::evicted() {
  const Use use(attachment());
  std::list<maru_key_copy> mine;
  for (int status = 0; status == 0;) {
    mine.emplace_back();  // before the library gives a key away
    status = maru_next_evicted(use.client(), &mine.back());
    if (status != 0) mine.pop_back();
    evicted_.splice(evicted_.end(), mine);
    if (status != -ENOENT) check(status, "maru_next_evicted");
  }
  mine.swap(evicted_);  // another thread gets none of them
  try {
    py::list keys = new_list(mine.size());
    Py_ssize_t i = 0;
    for (const maru_key_copy& key : mine) {
      py::object one = record(Record::kEvictedKey,
                              Py_BuildValue("(OK)", name_of(key).ptr(), static_cast<unsigned long long>(key.tenant)));
      PyList_SET_ITEM(keys.ptr(), i++, one.release().ptr());
    }
    return keys;
  } catch (...) {
    evicted_.splice(evicted_.begin(), mine);
    throw;
  }
}

// -- finding ----------------------------------------------------------------------------------------------------------

bool Client::exists(py::handle key, py::handle tenant, KeyForm form) const {
  const Use use(attachment());
  const OneKey one(key, tenant_of(use.client(), tenant), form);
  return check(run(takes_long(one), [&] { return maru_exists(use.client(), one.get()); }), "maru_exists") != 0;
}

py::object Client::exists_batch(py::handle keys, py::handle tenant, py::object out, KeyForm form) const {
  const Use use(attachment());
  const KeyBatch batch(keys, tenant_of(use.client(), tenant), KeyBatch::Wanted::kRows, form);
  const size_t n = batch.size();
  const auto ask = [&](void* where) {
    auto* const present = static_cast<uint8_t*>(where);
    const maru_key_rows* const rows = batch.rows();
    const int found = run(takes_long(batch, batch.is_array() ? kManyDigests : kManyTexts), [&] {
      return rows != nullptr ? maru_exists_rows(use.client(), rows, n, present)
                             : maru_exists_batch(use.client(), batch.data(), n, present);
    });
    return check(found, rows != nullptr ? "maru_exists_rows" : "maru_exists_batch");
  };
  if (!out.is_none()) {
    if (const auto array = plain_array(out, true);
        array && array->is_writable && array->dimensions == 1 && array->shape[0] == Py_ssize_t(n)) {
      ask(array->data);
      return out;
    }
    const HeldBuffer given(out, HeldBuffer::Wanted::kWritable);
    if (given.get().len != Py_ssize_t(n) || given.get().itemsize != 1)
      raise_named("InvalidArgumentError", "`out` must have one byte (bool or uint8) for each of the " +
                                              std::to_string(n) + " keys; it has " + std::to_string(given.get().len) +
                                              " bytes.");
    ask(given.get().buf);
    return out;
  }
  if (batch.is_array() && has_numpy()) {
    uint8_t* truths = nullptr;
    py::object present = new_truths(Py_ssize_t(n), &truths);
    ask(truths);
    return present;
  }
  uint8_t few[256];
  std::vector<uint8_t> many(n > sizeof(few) ? n : 0);
  uint8_t* const present = many.empty() ? few : many.data();
  const int found = ask(present);
  return list_of({present, n}, size_t(found));
}

template <typename Make>
py::object Client::retrieve_as(py::handle key, py::handle tenant, KeyForm form, Make&& make) const {
  const Use use(attachment());
  const OneKey one(key, tenant_of(use.client(), tenant), form);
  maru_view view;
  const int status = run(verifies_ || takes_long(one), [&] { return maru_retrieve(use.client(), one.get(), &view); });
  if (status == -ENOENT) return py::none();
  check(status, "maru_retrieve");
  return make(hold_of(attachment_, view), view, one);
}

py::object Client::retrieve(py::handle key, py::handle tenant) const {
  return retrieve_as(
      key, tenant, KeyForm::kClient,
      [](std::shared_ptr<Hold> hold, const maru_view& view, const OneKey&) { return new_view(std::move(hold), view); });
}

py::object Client::find(py::handle key, py::handle tenant, py::handle places) const {
  return retrieve_as(key, tenant, KeyForm::kHandler,
                     [&](std::shared_ptr<Hold> hold, const maru_view& view, const OneKey& one) {
                       return new_memory_info(std::move(hold), view, one.plain(), places);
                     });
}

// An object of each view: make(hold, view, i), or fail(i) of what is there and cannot be read, or None.
template <typename Make, typename Fail>
py::list Client::found_as(const std::vector<maru_view>& views, maru_client* client, Make&& make, Fail&& fail) const {
  const size_t n = views.size();
  size_t held = 0;  // views that the objects made of them release
  try {
    py::list result = new_list(n);
    while (held < n) {
      const size_t i = held;
      std::shared_ptr<Hold> hold;
      if (views[i].block != 0) hold = std::make_shared<PinHold>(attachment_, views[i]);
      ++held;
      py::object item = py::none();
      if (hold)
        item = make(std::move(hold), views[i], i);
      else if (views[i].bytes != 0) [[unlikely]]
        item = fail(i);
      PyList_SET_ITEM(result.ptr(), Py_ssize_t(i), item.release().ptr());
    }
    return result;
  } catch (...) {
    maru_release_batch(client, views.data() + held, n - held);
    throw;
  }
}

template <typename Make, typename Fail>
py::list Client::retrieve_batch_as(py::handle keys, py::handle tenant, KeyForm form, Make&& make, Fail&& fail) const {
  const Use use(attachment());
  const KeyBatch batch(keys, tenant_of(use.client(), tenant), KeyBatch::Wanted::kPlain, form);
  std::vector<maru_view> views(batch.size());
  int status = 0;
  {
    const WithoutGil released;
    status = maru_retrieve_batch(use.client(), batch.data(), views.size(), views.data());
  }
  check(status, "maru_retrieve_batch");
  return found_as(
      views, use.client(),
      [&](std::shared_ptr<Hold> hold, const maru_view& view, size_t i) {
        return make(std::move(hold), view, batch, i);
      },
      [&](size_t i) { return fail(exception_of(-int(views[i].bytes), "maru_retrieve_batch"), batch, i); });
}

py::list Client::retrieve_batch(py::handle keys, py::handle tenant) const {
  return retrieve_batch_as(
      keys, tenant, KeyForm::kClient,
      [](std::shared_ptr<Hold> hold, const maru_view& view, const KeyBatch&, size_t) {
        return new_view(std::move(hold), view);
      },
      [](py::object error, const KeyBatch&, size_t) { return error; });
}

py::list Client::find_batch(py::handle keys, py::handle tenant, py::handle places) const {
  return retrieve_batch_as(
      keys, tenant, KeyForm::kHandler,
      [&](std::shared_ptr<Hold> hold, const maru_view& view, const KeyBatch& batch, size_t i) {
        return new_memory_info(std::move(hold), view, batch.plain(i), places);
      },
      [&](const py::object& error, const KeyBatch& batch, size_t i) {
        return places.attr("pass_over")(batch.plain(i), error);
      });
}

py::object Client::pin(py::handle key, py::handle tenant) const {
  const Use use(attachment());
  const OneKey one(key, tenant_of(use.client(), tenant));
  maru_view view;
  const int status = run(takes_long(one), [&] { return maru_pin(use.client(), one.get(), &view); });
  if (status == -ENOENT) return py::none();
  check(status, "maru_pin");
  return new_pin(hold_of(attachment_, view), view);
}

py::list Client::pin_batch(py::handle keys, py::handle tenant) const {
  const Use use(attachment());
  const KeyBatch batch(keys, tenant_of(use.client(), tenant));
  std::vector<maru_view> views(batch.size());
  check(run(takes_long(batch, kManyMatched),
            [&] { return maru_pin_batch(use.client(), batch.data(), views.size(), views.data()); }),
        "maru_pin_batch");
  return found_as(
      views, use.client(),
      [](std::shared_ptr<Hold> hold, const maru_view& view, size_t) { return new_pin(std::move(hold), view); },
      [](size_t) { return py::none(); });
}

void Client::unpin_batch(py::handle pins) const { release_pins(attachment(), pins); }

py::object Client::pin_block(maru_block block) const {
  maru_view view;
  const int status = maru_pin_block(attachment().open(), block, &view);
  if (status == -ENOENT) return py::none();
  check(status, "maru_pin_block");
  return new_pin(hold_of(attachment_, view), view);
}

py::object Client::match_prefix(py::handle keys, py::handle tenant) const {
  const Use use(attachment());
  const KeyBatch batch(keys, tenant_of(use.client(), tenant));
  maru_match match;
  check(run(takes_long(batch, kManyMatched),
            [&] { return maru_match_prefix(use.client(), batch.data(), batch.size(), &match); }),
        "maru_match_prefix");
  std::unique_ptr<Match> made;
  try {
    made = std::make_unique<Match>(attachment_, match);
  } catch (...) {
    maru_release_match(use.client(), &match);
    throw;
  }
  return object_of(std::move(made));
}

// -- deleting ---------------------------------------------------------------------------------------------------------

bool Client::remove(py::handle key, py::handle tenant) {
  const Use use(attachment());
  const OneKey one(key, tenant_of(use.client(), tenant));
  const int status = run(true, [&] { return maru_delete(use.client(), one.get()); });
  if (status == -ENOENT) return false;
  check(status, "maru_delete");
  return true;
}

py::object Client::remove_batch(py::handle keys, py::handle tenant) {
  const Use use(attachment());
  const KeyBatch batch(keys, tenant_of(use.client(), tenant));
  const size_t n = batch.size();
  std::vector<int32_t> results(n);
  check(run(true, [&] { return maru_delete_batch(use.client(), batch.data(), n, results.data()); }),
        "maru_delete_batch");
  std::vector<uint8_t> is_gone(n);
  int failed = 0;
  for (size_t i = 0; i < n; ++i) {
    is_gone[i] = results[i] == 0;
    if (failed == 0 && results[i] != -ENOENT) failed = results[i];
  }
  const auto gone = size_t(std::count(is_gone.begin(), is_gone.end(), uint8_t(1)));
  py::object answer = batch.is_array() && has_numpy() ? array_of(is_gone) : list_of(is_gone, gone);
  if (failed != 0) raise_with(failed, "maru_delete_batch", "deleted", answer);
  return answer;
}

uint64_t Client::remove_tree(py::handle key, py::handle tenant) {
  const Use use(attachment());
  const OneKey root(key, tenant_of(use.client(), tenant));
  uint64_t deleted = 0;
  int status = 0;
  {
    const WithoutGil released;
    status = maru_delete_tree(use.client(), root.get(), &deleted);
  }
  if (status == -ENOENT) return 0;
  check(status, "maru_delete_tree");
  return deleted;
}

}  // namespace maru_python
