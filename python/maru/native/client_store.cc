// Storing: the part of maru.Client that puts blocks into the pool.
#include "arrays.h"
#include "client.h"
#include "errors.h"
#include "keys.h"

#include <optional>
#include <vector>

namespace py = pybind11;

namespace maru_python {
namespace {

// The options as maru.h wants them, and what they point to.
class CStoreOptions {
 public:
  CStoreOptions(const Client::StoreOptions& given, uint64_t tenant) {
    options_.size = sizeof(options_);
    options_.ttl_ms = given.ttl_ms;
    options_.priority = given.priority;
    options_.content_type = given.content_type;
    if (given.parent.is_none()) return;
    if (PyLong_Check(given.parent.ptr())) {
      options_.parent = PyLong_AsUnsignedLongLong(given.parent.ptr());
      if (options_.parent == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        raise_named("InvalidArgumentError", "This number is no block: a parent is a key, or the `block` of a result.");
      }
    } else {
      options_.parent_key = parent_key_.emplace(given.parent, tenant).get();
    }
  }
  CStoreOptions(const CStoreOptions&) = delete;
  CStoreOptions& operator=(const CStoreOptions&) = delete;
  const maru_store_options* get() const { return &options_; }

 private:
  maru_store_options options_{};
  std::optional<OneKey> parent_key_;
};

py::object stored(maru_block block, int status) {
  return py::module_::import("maru.records").attr("Stored")(block, status == 0);
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
  }
  if (there.block != 0) maru_release(client, &there);
  return status;
}

}  // namespace

std::unique_ptr<Buffer> Client::alloc(uint64_t bytes) {
  const Use use(attachment());
  maru_buffer buffer;
  int status = 0;
  {
    const WithoutGil released;
    status = maru_alloc(use.client(), bytes, &buffer);
  }
  check(status, "maru_alloc");
  return std::make_unique<Buffer>(attachment_, buffer);
}

py::list Client::alloc_batch(uint64_t bytes, size_t n) {
  const Use use(attachment());
  if (n == 0) return py::list();
  constexpr size_t kBatchMax = 1u << 20;
  if (n > kBatchMax) raise_named("InvalidArgumentError", "A batch has at most 2^20 buffers.");
  std::vector<maru_buffer> buffers(n);
  int status = 0;
  {
    const WithoutGil released;
    status = maru_alloc_batch(use.client(), bytes, n, buffers.data());
  }
  check(status, "maru_alloc_batch");
  size_t held = 0;  // buffers that the objects made of them give back
  try {
    py::list result = new_list(n);
    while (held < n) {
      auto buffer = std::make_unique<Buffer>(attachment_, buffers[held]);
      const auto i = Py_ssize_t(held++);
      PyList_SET_ITEM(result.ptr(), i, py::cast(std::move(buffer)).release().ptr());
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
  const CStoreOptions c_options(options, tenant);
  const py::tuple given = tuple_of(buffers, "A chain wants a sequence of buffers, not ");
  const size_t n = batch.size();
  if (given.size() != n)
    raise_named("InvalidArgumentError", std::to_string(n) + " keys, but " + std::to_string(given.size()) +
                                            " buffers: a chain wants one buffer for each key.");
  std::vector<Buffer*> chain(n);
  std::vector<maru_buffer> pages(n);
  std::vector<maru_block> blocks(n);
  size_t begun = 0, done = 0, new_blocks = 0;
  std::vector<maru_view> views;  // where somebody goes on using a buffer
  const auto end = [&] {
    for (size_t i = 0; i < begun; ++i) {
      if (i < done && !views.empty())
        chain[i]->end_shared_store(views[i]);
      else
        chain[i]->end_store(i < done);
    }
  };
  try {
    for (; begun < n; ++begun) {
      if (!py::isinstance<Buffer>(given[begun]))
        raise_named("InvalidArgumentError", "A chain is stored from buffers of alloc or alloc_batch.");
      chain[begun] = given[begun].cast<Buffer*>();
      pages[begun] = chain[begun]->begin_store(keep_views);
    }
    for (const Buffer* buffer : chain)
      if (buffer->is_shared()) views.resize(n);
  } catch (...) {
    end();
    throw;
  }
  int status = 0;
  {
    const WithoutGil released;
    status = views.empty() ? maru_store_chain(use.client(), batch.data(), pages.data(), n, c_options.get(),
                                              blocks.data(), &new_blocks, &done)
                           : store_chain_pinned(use.client(), batch.data(), pages.data(), n, *c_options.get(),
                                                views.data(), blocks.data(), &new_blocks, &done);
  }
  if (status >= 0) done = n;
  end();
  check(status, "maru_store_chain");
  py::list names = new_list(n);
  for (size_t i = 0; i < n; ++i) {
    PyObject* const name = PyLong_FromUnsignedLongLong(blocks[i]);
    if (name == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(names.ptr(), Py_ssize_t(i), name);
  }
  return py::module_::import("maru.records").attr("StoredChain")(names, new_blocks);
}

}  // namespace maru_python
