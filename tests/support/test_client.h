// An attached client in few words: keys and payloads as text, results as maru.h gives them.
#pragma once

#include "maru/maru.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace maru::test {

// The library reads the key during the call only; so does this.
inline maru_key key_of(std::string_view text, uint64_t tenant = 0) {
  return {text.data(), uint32_t(text.size()), MARU_KEY_BYTES, tenant};
}

inline maru_attach_options attach_options(const std::string& socket_path, const std::string& pool) {
  maru_attach_options options{};
  options.size = sizeof(options);
  options.socket_path = socket_path.c_str();
  options.pool = pool.c_str();
  options.timeout_ms =
      far_too_long_ms();  // a marud on a busy machine may stand still for longer than the library's own bound
  return options;
}

class TestClient {
 public:
  explicit TestClient(const std::string& socket_path, const std::string& pool = "default",
                      uint32_t timeout_ms = far_too_long_ms(), uint32_t flags = 0, uint32_t thread_cache_pages = 0) {
    maru_attach_options options = attach_options(socket_path, pool);
    options.timeout_ms = timeout_ms;
    options.flags = flags;
    options.thread_cache_pages = thread_cache_pages;
    // The bound is meant for what comes later: a slow machine may take longer than that to attach at all, every time, and
    // then gets more of it. All lanes may be those of dead processes that marud has not taken back yet, and marud may be away
    // for a moment.
    int result = -ETIMEDOUT;
    (void)wait_until([&] {
      if ((result = maru_attach(&options, &client_)) == -ETIMEDOUT)
        options.timeout_ms = std::min(2 * options.timeout_ms, far_too_long_ms());
      return result != -ETIMEDOUT && result != -EUSERS && result != -ECONNREFUSED;
    });
    if (result != 0) throw std::runtime_error("attach to " + pool + ": " + std::to_string(result));
  }
  // Nothing, and why in *ret_result, when attaching is refused.
  static std::unique_ptr<TestClient> try_attach(const std::string& socket_path, const std::string& pool,
                                                int* ret_result) {
    const maru_attach_options options = attach_options(socket_path, pool);
    maru_client* client = nullptr;
    *ret_result = maru_attach(&options, &client);
    return *ret_result == 0 ? std::unique_ptr<TestClient>(new TestClient(client)) : nullptr;
  }
  ~TestClient() { maru_detach(client_); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;
  operator maru_client*() const { return client_; }
  void detach() {
    maru_detach(client_);
    client_ = nullptr;
  }

  int store(std::string_view key, std::string_view text, std::string_view parent = {}, uint64_t ttl_ms = 0,
            maru_block* ret_block = nullptr) {
    const maru_key k = key_of(key), p = key_of(parent);
    maru_store_options options{};
    options.size = sizeof(options);
    options.parent_key = parent.empty() ? nullptr : &p;
    options.ttl_ms = ttl_ms;
    return maru_store_copy(client_, &k, text.data(), text.size(), &options, ret_block);
  }
  int store(const maru_key& key, std::string_view text) {
    return maru_store_copy(client_, &key, text.data(), text.size(), nullptr, nullptr);
  }
  // For those who fill a small pool to the last page: in one of a thousand such pools both buckets of some key are full. Then
  // the block is stored under a key near it, which is in `key` afterwards.
  int store_near(std::string& key, std::string_view text, maru_block* ret_block = nullptr) {
    int result = -EXFULL;
    for (int tries = 0; result == -EXFULL && tries < 10; ++tries) {
      if (tries > 0) key += '\'';
      result = store(key, text, {}, 0, ret_block);
    }
    return result;
  }
  int retrieve(std::string_view key, maru_view* ret_view) {
    const maru_key k = key_of(key);
    return maru_retrieve(client_, &k, ret_view);
  }
  int release(const maru_view& view) { return maru_release(client_, &view); }
  int remove(std::string_view key) {
    const maru_key k = key_of(key);
    return maru_delete(client_, &k);
  }
  int remove_tree(std::string_view key, uint64_t* ret_deleted = nullptr) {
    const maru_key k = key_of(key);
    return maru_delete_tree(client_, &k, ret_deleted);
  }
  int exists(std::string_view key) {
    const maru_key k = key_of(key);
    return maru_exists(client_, &k);
  }
  // The payload, or nothing when the key is absent. Any other error throws.
  std::optional<std::string> text(std::string_view key) {
    maru_view view;
    const int result = retrieve(key, &view);
    if (result == -ENOENT) return std::nullopt;
    if (result != 0) throw std::runtime_error("retrieve: " + std::to_string(result));
    std::string copy(static_cast<const char*>(view.data), view.bytes);
    release(view);
    return copy;
  }
  maru_geometry geometry() const {
    maru_geometry g{};
    g.size = sizeof(g);
    maru_get_geometry(client_, &g);
    return g;
  }
  maru_statistics statistics() const {
    maru_statistics s{};
    s.size = sizeof(s);
    maru_get_statistics(client_, &s);
    return s;
  }

 private:
  explicit TestClient(maru_client* client) : client_(client) {}

  maru_client* client_ = nullptr;
};

}  // namespace maru::test
