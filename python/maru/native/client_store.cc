// Storing: the part of maru.Client that puts blocks into the pool.
#include "arguments.h"
#include "arrays.h"
#include "client.h"
#include "errors.h"
#include "keys.h"
#include "records.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace maru_python {
namespace {

// The options as maru.h wants them, and what they point to.
class CStoreOptions {
 public:
  // Of one block.
  CStoreOptions(const Client::StoreOptions& given, uint64_t tenant) : CStoreOptions(given) {
    describe(given.metadata);
    options_.metadata = metadata_.data();
    name_parent(given, tenant);
  }
  // Of n blocks.
  CStoreOptions(const Client::StoreOptions& given, uint64_t tenant, size_t n) : CStoreOptions(given) {
    if (!given.metadata.is_none()) describe_each(given.metadata, n);
    if (!metadata_.empty()) options_.metadata = metadata_.data();
    name_parent(given, tenant);
  }
  CStoreOptions(const CStoreOptions&) = delete;
  CStoreOptions& operator=(const CStoreOptions&) = delete;
  const maru_store_options* get() const { return &options_; }

 private:
  explicit CStoreOptions(const Client::StoreOptions& given) {
    options_.size = sizeof(options_);
    options_.ttl_ms = given.ttl_ms;
    options_.priority = given.priority;
    options_.content_type = given.content_type;
  }

  void name_parent(const Client::StoreOptions& given, uint64_t tenant) {
    if (given.parent.is_none()) return;
    const py::object number = block_number(given.parent);
    if (!number) {
      options_.parent_key = parent_key_.emplace(given.parent, tenant).get();
      return;
    }
    options_.parent = PyLong_AsUnsignedLongLong(number.ptr());
    if (options_.parent == UINT64_MAX && PyErr_Occurred()) {
      PyErr_Clear();
      raise_named("InvalidArgumentError", "This number is no block: a parent is a key, or the `block` of a result.");
    }
  }
  void describe(py::handle metadata) {
    if (PyUnicode_Check(metadata.ptr()))
      raise_named("InvalidArgumentError", "Metadata is bytes, or what has a buffer, not a str: encode it.");
    const Py_buffer& buffer = held_.emplace_back(metadata, HeldBuffer::Wanted::kBytes).get();
    refuse_objects(metadata);
    metadata_.push_back({buffer.buf, uint32_t(std::min<uint64_t>(uint64_t(buffer.len), UINT32_MAX)), 0});
  }
  void describe_each(py::handle metadata, size_t n) {
    const bool is_one =
        PyUnicode_Check(metadata.ptr()) || PyBytes_Check(metadata.ptr()) || PyByteArray_Check(metadata.ptr());
    if (is_one)
      raise_named("InvalidArgumentError", "Several blocks want a sequence of metadata, with the bytes of each.");
    const py::tuple each = tuple_of(metadata, "A sequence of metadata, with the bytes of each block, is wanted, not ");
    if (each.empty()) return;
    if (each.size() != n)
      raise_named("InvalidArgumentError", std::to_string(n) + " keys, but metadata of " + std::to_string(each.size()) +
                                              " blocks: one entry is wanted for each key.");
    for (const py::handle one : each) describe(one);
  }

  // An int, also one of NumPy, as the arrays of StoredBatch have; null for what is a key. An array is none, of whatever length.
  static py::object block_number(py::handle parent) {
    if (PyLong_Check(parent.ptr()) && !is_truth(parent)) return py::reinterpret_borrow<py::object>(parent);
    if (!PyIndex_Check(parent.ptr()) || is_truth(parent) || py::hasattr(parent, "__len__")) return py::object();
    auto number = py::reinterpret_steal<py::object>(PyNumber_Index(parent.ptr()));
    if (!number) throw py::error_already_set();
    return number;
  }

  maru_store_options options_{};
  std::optional<OneKey> parent_key_;
  std::deque<HeldBuffer> held_;
  std::vector<maru_metadata> metadata_;  // of each block, or empty
};

py::object stored(maru_block block, int status) {
  return record(Record::kStored,
                Py_BuildValue("(KO)", static_cast<unsigned long long>(block), status == 0 ? Py_True : Py_False));
}

// Buffers that are being stored: busy until end() or end_shared() has said how that went. Those of which nothing was said are
// the caller's again.
class BuffersInStore {
 public:
  BuffersInStore() = default;
  BuffersInStore(const BuffersInStore&) = delete;
  BuffersInStore& operator=(const BuffersInStore&) = delete;
  ~BuffersInStore() {
    for (Buffer* buffer : buffers_)
      if (buffer != nullptr) buffer->end_store(false);
  }

  // Raises when these are not n buffers that may be stored.
  void begin(py::handle given, size_t n, bool keep_views) {
    given_ = tuple_of(given, "A sequence of buffers is wanted, not ");
    if (given_.size() != n)
      raise_named("InvalidArgumentError", std::to_string(n) + " keys, but " + std::to_string(given_.size()) +
                                              " buffers: one buffer is wanted for each key.");
    buffers_.reserve(n);
    pages_.reserve(n);
    for (const py::handle one : given_) {
      if (!py::isinstance<Buffer>(one))
        raise_named("InvalidArgumentError", "What is stored is a buffer of alloc or alloc_batch.");
      Buffer* const buffer = one.cast<Buffer*>();
      pages_.push_back(buffer->begin_store(keep_views));
      buffers_.push_back(buffer);
    }
    for (const Buffer* buffer : buffers_) {
      shared_.push_back(buffer->is_shared());
      are_some_shared_ |= buffer->is_shared();
    }
  }

  const maru_buffer* pages() const { return pages_.data(); }
  // Whether somebody goes on using the memory of some buffer, or of this one. That may end meanwhile, and not begin.
  bool are_some_shared() const { return are_some_shared_; }
  bool is_shared(size_t i) const { return shared_[i]; }

  void end(size_t i, bool is_used_up) { std::exchange(buffers_[i], nullptr)->end_store(is_used_up); }
  void end_shared(size_t i, const maru_view& view) { std::exchange(buffers_[i], nullptr)->end_shared_store(view); }

 private:
  py::tuple given_;
  std::vector<Buffer*> buffers_;  // null once ended
  std::vector<maru_buffer> pages_;
  std::vector<bool> shared_;
  bool are_some_shared_ = false;
};

// maru_store_batch for buffers of which somebody goes on using some: those are pinned from the moment that they are there.
// ret_views: n entries, views of nothing where the buffer is not shared or was not needed.
void store_batch_pinned(maru_client* client, const maru_key* keys, const BuffersInStore& buffers, size_t n,
                        const maru_store_options* options, maru_view* ret_views, maru_block* ret_blocks,
                        int32_t* ret_results) {
  maru_store_options own = *options;
  int silence = 0;  // marud is not asked again: a store asks it for the credit of a tenant, which is that of all
  for (size_t i = 0; i < n; ++i) {
    int status = silence;
    if (options->metadata != nullptr) own.metadata = options->metadata + i;
    if (status == 0 && buffers.is_shared(i)) {
      status = maru_store_pinned(client, &keys[i], &buffers.pages()[i], &own, &ret_views[i]);
      ret_blocks[i] = ret_views[i].block;
      maru_view there{};
      if (status == 1 && maru_pin(client, &keys[i], &there) == 0) {
        ret_blocks[i] = there.block;
        maru_release(client, &there);
      }
    } else if (status == 0) {
      status = maru_store(client, &keys[i], &buffers.pages()[i], &own, &ret_blocks[i]);
    }
    if (status == -ENOTCONN || status == -ETIMEDOUT || status == -ESTALE) silence = status;
    ret_results[i] = status;
  }
}

// Where the bytes of each block of a batch are, for as long as this lives.
class DataBatch {
 public:
  // data: n objects with a buffer each, or one array, whose first dimension counts the blocks.
  DataBatch(py::handle data, size_t n) {
    PyObject* const o = data.ptr();
    if (PyUnicode_Check(o) || PyBytes_Check(o) || PyByteArray_Check(o))
      raise_named("InvalidArgumentError",
                  "A batch wants the bytes of several blocks: a sequence of buffers, or an array of one row for each.");
    starts_.reserve(n);
    sizes_.reserve(n);
    if (PyObject_CheckBuffer(o))
      read_rows(data, n);
    else
      read_items(data, n);
    for (size_t i = 0; i < n; ++i)
      if (sizes_[i] == 0)
        raise_named("InvalidArgumentError",
                    "Block " + std::to_string(i) + " of the batch has no bytes: one is the least.");
  }
  DataBatch(const DataBatch&) = delete;
  DataBatch& operator=(const DataBatch&) = delete;

  const void* const* starts() const { return starts_.data(); }
  const uint64_t* sizes() const { return sizes_.data(); }

 private:
  void read_rows(py::handle array, size_t n) {
    const Py_buffer& buffer = buffers_.emplace_back(array, HeldBuffer::Wanted::kRows).get();
    refuse_objects(array);
    if (buffer.ndim < 2 || size_t(buffer.shape[0]) != n)
      raise_named("InvalidArgumentError", std::to_string(n) + " keys, but an array of " + std::to_string(buffer.ndim) +
                                              " dimensions, the first of " +
                                              std::to_string(buffer.ndim < 1 ? 1 : buffer.shape[0]) +
                                              ": one row is wanted for each key.");
    const uint64_t row_bytes = n == 0 ? 0 : uint64_t(buffer.len) / n;
    for (size_t i = 0; i < n; ++i) {
      starts_.push_back(static_cast<const char*>(buffer.buf) + i * row_bytes);
      sizes_.push_back(row_bytes);
    }
  }

  void read_items(py::handle sequence, size_t n) {
    const py::tuple items = tuple_of(sequence, "A sequence of buffers, or an array, is wanted, not ");
    if (items.size() != n)
      raise_named("InvalidArgumentError", std::to_string(n) + " keys, but the bytes of " +
                                              std::to_string(items.size()) + " blocks: one is wanted for each key.");
    for (const py::handle item : items) {
      const Py_buffer& buffer = buffers_.emplace_back(item, HeldBuffer::Wanted::kBytes).get();
      refuse_objects(item);
      starts_.push_back(buffer.buf);
      sizes_.push_back(uint64_t(buffer.len));
    }
  }

  std::deque<HeldBuffer> buffers_;
  std::vector<const void*> starts_;
  std::vector<uint64_t> sizes_;
};

py::list list_of_blocks(const std::vector<maru_block>& blocks) {
  py::list names = new_list(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    PyObject* const name = PyLong_FromUnsignedLongLong(blocks[i]);
    if (name == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(names.ptr(), Py_ssize_t(i), name);
  }
  return names;
}

// A StoredBatch: arrays for arrays.
py::object stored_batch(const std::vector<maru_block>& blocks, const std::vector<int32_t>& results, bool are_arrays,
                        const char* call) {
  const auto n = Py_ssize_t(results.size());
  py::dict errors;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (results[size_t(i)] < 0) errors[py::int_(i)] = exception_of(results[size_t(i)], call);
  py::object names, truths;
  if (are_arrays) {
    uint64_t* numbers = nullptr;
    names = new_numbers(n, &numbers);
    std::copy(blocks.begin(), blocks.end(), numbers);
    uint8_t* bytes = nullptr;
    truths = new_truths(n, &bytes);
    for (Py_ssize_t i = 0; i < n; ++i) bytes[i] = results[size_t(i)] == 0;
  } else {
    names = list_of_blocks(blocks);
    truths = new_list(size_t(n));
    for (Py_ssize_t i = 0; i < n; ++i) PyList_SET_ITEM(truths.ptr(), i, PyBool_FromLong(results[size_t(i)] == 0));
  }
  return record(Record::kStoredBatch, PyTuple_Pack(3, names.ptr(), truths.ptr(), errors.ptr()));
}

// maru_store_chain for buffers that somebody goes on using. Every block that is new is pinned from the moment that it is there;
// the view of one that was there already is a view of nothing. ret_views and ret_blocks: n entries.
int store_chain_pinned(maru_client* client, const maru_key* keys, const maru_buffer* buffers, size_t n,
                       maru_store_options options, maru_view* ret_views, maru_block* ret_blocks, size_t* ret_new,
                       size_t* ret_done) {
  maru_view there{};  // pins the parent of the next, when that was there already
  int status = 0;
  for (size_t i = 0; i < n && status >= 0; ++i) {
    status = maru_store_pinned(client, &keys[i], &buffers[i], &options, &ret_views[i]);
    if (there.block != 0) maru_release(client, &there);
    there = {};
    if (status < 0) break;
    *ret_done = i + 1;
    *ret_new += status == 0;
    ret_blocks[i] = ret_views[i].block;
    if (status == 1) {
      const int found = maru_pin(client, &keys[i], &there);
      if (found == 0)
        ret_blocks[i] = there.block;
      else if (i + 1 < n)
        status = found == -ENOENT ? -ENOLINK : found;
    }
    options.parent = ret_blocks[i];
    options.parent_key = nullptr;
    if (options.metadata != nullptr) ++options.metadata;  // the next block's
  }
  if (there.block != 0) maru_release(client, &there);
  return status;
}

}  // namespace

py::object Client::alloc(uint64_t bytes, uint32_t metadata_bytes) {
  const Use use(attachment());
  maru_buffer buffer;
  int status = 0;
  {
    const WithoutGil released;
    status = maru_alloc_with_metadata(use.client(), bytes, metadata_bytes, 1, &buffer);
  }
  check(status, "maru_alloc");
  std::unique_ptr<Buffer> made;
  try {
    made = std::make_unique<Buffer>(attachment_, buffer);
  } catch (...) {
    const WithoutGil released;
    maru_abort(use.client(), &buffer);
    throw;
  }
  return object_of(std::move(made));
}

py::list Client::alloc_batch(uint64_t bytes, size_t n, uint32_t metadata_bytes) {
  const Use use(attachment());
  if (n == 0) return py::list();
  constexpr size_t kBatchMax = 1u << 20;
  if (n > kBatchMax) raise_named("InvalidArgumentError", "A batch has at most 2^20 buffers.");
  std::vector<maru_buffer> buffers(n);
  int status = 0;
  {
    const WithoutGil released;
    status = maru_alloc_with_metadata(use.client(), bytes, metadata_bytes, n, buffers.data());
  }
  check(status, "maru_alloc_batch");
  size_t held = 0;  // buffers that the objects made of them give back
  try {
    py::list result = new_list(n);
    while (held < n) {
      auto buffer = std::make_unique<Buffer>(attachment_, buffers[held]);
      const auto i = Py_ssize_t(held++);
      PyList_SET_ITEM(result.ptr(), i, object_of(std::move(buffer)).release().ptr());
    }
    return result;
  } catch (...) {
    maru_abort_batch(use.client(), buffers.data() + held, n - held);
    throw;
  }
}

py::object Client::store(py::handle key, Buffer& buffer, const StoreOptions& options, bool keep_views) {
  const Use use(attachment());
  const uint64_t tenant = tenant_of(use.client(), options.tenant);
  const OneKey one(key, tenant);
  const CStoreOptions c_options(options, tenant);
  const maru_buffer& pages = buffer.begin_store(keep_views);
  const bool is_shared = buffer.is_shared();
  maru_block block = 0;
  maru_view view{};
  int status = 0;
  {
    const WithoutGil released;
    status = is_shared ? maru_store_pinned(use.client(), one.get(), &pages, c_options.get(), &view)
                       : maru_store(use.client(), one.get(), &pages, c_options.get(), &block);
  }
  if (is_shared && status >= 0)
    buffer.end_shared_store(view);
  else
    buffer.end_store(status >= 0);
  check(status, is_shared ? "maru_store_pinned" : "maru_store");
  return stored(is_shared ? view.block : block, status);
}

py::object Client::store_copy(py::handle key, py::handle data, const StoreOptions& options) {
  const Use use(attachment());
  const uint64_t tenant = tenant_of(use.client(), options.tenant);
  const OneKey one(key, tenant);
  const CStoreOptions c_options(options, tenant);
  const HeldBuffer bytes(data, HeldBuffer::Wanted::kBytes);
  refuse_objects(data);
  maru_block block = 0;
  int status = 0;
  {
    const WithoutGil released;
    status = maru_store_copy(use.client(), one.get(), bytes.get().buf, static_cast<uint64_t>(bytes.get().len),
                             c_options.get(), &block);
  }
  check(status, "maru_store_copy");
  return stored(block, status);
}

py::object Client::store_chain(py::handle keys, py::handle buffers, const StoreOptions& options, bool keep_views) {
  const Use use(attachment());
  const uint64_t tenant = tenant_of(use.client(), options.tenant);
  const KeyBatch batch(keys, tenant);
  const size_t n = batch.size();
  const CStoreOptions c_options(options, tenant, n);
  std::vector<maru_block> blocks(n);
  BuffersInStore chain;
  chain.begin(buffers, n, keep_views);
  std::vector<maru_view> views(chain.are_some_shared() ? n : 0);
  size_t done = 0, new_blocks = 0;
  int status = 0;
  {
    const WithoutGil released;
    status = views.empty() ? maru_store_chain(use.client(), batch.data(), chain.pages(), n, c_options.get(),
                                              blocks.data(), &new_blocks, &done)
                           : store_chain_pinned(use.client(), batch.data(), chain.pages(), n, *c_options.get(),
                                                views.data(), blocks.data(), &new_blocks, &done);
  }
  if (status >= 0) done = n;
  for (size_t i = 0; i < n; ++i) {
    if (i < done && !views.empty())
      chain.end_shared(i, views[i]);
    else
      chain.end(i, i < done);
  }
  check(status, "maru_store_chain");
  return record(Record::kStoredChain, Py_BuildValue("(On)", list_of_blocks(blocks).ptr(), Py_ssize_t(new_blocks)));
}

py::object Client::store_batch(py::handle keys, py::handle buffers, const StoreOptions& options, bool keep_views) {
  const Use use(attachment());
  const uint64_t tenant = tenant_of(use.client(), options.tenant);
  const KeyBatch batch(keys, tenant);
  const size_t n = batch.size();
  const CStoreOptions c_options(options, tenant, n);
  std::vector<maru_block> blocks(n);
  std::vector<int32_t> results(n);
  BuffersInStore stored;
  stored.begin(buffers, n, keep_views);
  std::vector<maru_view> views(stored.are_some_shared() ? n : 0);
  int status = 0;
  {
    const WithoutGil released;
    if (views.empty())
      status = maru_store_batch(use.client(), batch.data(), stored.pages(), n, c_options.get(), blocks.data(),
                                results.data());
    else
      store_batch_pinned(use.client(), batch.data(), stored, n, c_options.get(), views.data(), blocks.data(),
                         results.data());
  }
  for (size_t i = 0; i < n && status >= 0; ++i) {
    if (results[i] >= 0 && stored.is_shared(i))
      stored.end_shared(i, views[i]);
    else
      stored.end(i, results[i] >= 0);
  }
  check(status, "maru_store_batch");
  return stored_batch(blocks, results, batch.is_array() && has_numpy(), "maru_store_batch");
}

py::object Client::store_copy_batch(py::handle keys, py::handle data, const StoreOptions& options) {
  const Use use(attachment());
  const uint64_t tenant = tenant_of(use.client(), options.tenant);
  const KeyBatch batch(keys, tenant);
  const size_t n = batch.size();
  const CStoreOptions c_options(options, tenant, n);
  const DataBatch bytes(data, n);
  std::vector<maru_block> blocks(n);
  std::vector<int32_t> results(n);
  int status = 0;
  {
    const WithoutGil released;
    status = maru_store_copy_batch(use.client(), batch.data(), bytes.starts(), bytes.sizes(), n, c_options.get(),
                                   blocks.data(), results.data());
  }
  check(status, "maru_store_copy_batch");
  return stored_batch(blocks, results, batch.is_array() && has_numpy(), "maru_store_copy_batch");
}

}  // namespace maru_python
