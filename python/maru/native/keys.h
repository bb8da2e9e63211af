// Keys as Python has them, as the library reads them. Nothing but short texts is copied: these objects keep what they point to
// alive, and unchanged where Python allows that, for the time of a call.
#pragma once

#include <list>
#include <maru/maru.h>
#include <memory>
#include <optional>
#include <pybind11/pybind11.h>
#include <string>

namespace maru_python {

// A Py_buffer that is released again. Does not move: some exporters point into it.
class HeldBuffer {
 public:
  enum class Wanted { kBytes, kRows, kShape, kWritable };
  // Raises InvalidArgumentError when the object has no such buffer, or none without gaps.
  HeldBuffer(pybind11::handle object, Wanted wanted);
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  ~HeldBuffer() { PyBuffer_Release(&buffer_); }

  const Py_buffer& get() const { return buffer_; }

 private:
  Py_buffer buffer_{};
};

// What is copied into a pool may not refer to anything: raises InvalidArgumentError when the items of its buffer are objects.
void refuse_objects(pybind11::handle object);

// What is not iterable is refused, with `wanted` and its type.
pybind11::object tuple_of(pybind11::handle sequence, const char* wanted);

// A whole number from 0 to max, also one of NumPy; `name` is the argument's. Everything else is refused.
uint64_t number_of(pybind11::handle value, const char* name, uint64_t max);

// A str or, where `name` is socket_path, an os.PathLike; or None.
std::optional<std::string> path_of(pybind11::handle value, const char* name);

// None is no tenant, a str the name of one, an int what Client.tenant() returned.
uint64_t tenant_of(const maru_client* client, pybind11::handle tenant);

// Which objects are keys. kClient: str, bytes, bytearray and memoryview are the bytes of a key; Digest and a NumPy array of
// 16 or 32 uint8 are digests. kHandler: also integers, and the empty text (handler_keys.h).
enum class KeyForm { kClient, kHandler };

class OneKey {
 public:
  OneKey(pybind11::handle key, uint64_t tenant, KeyForm form = KeyForm::kClient);
  const maru_key* get() const { return &key_; }
  // The same key in an object that refers to nothing else and does not change: a str, bytes or Digest.
  pybind11::object plain() const;

 private:
  pybind11::object made_;  // the client's key for the given one, where they differ
  pybind11::handle given_;
  maru_key key_{};
  std::optional<HeldBuffer> buffer_;
};

// A sequence of such keys, or an n x 16 or n x 32 array of uint8.
class KeyBatch {
 public:
  // What is asked for afterwards: plain() and data(); data(); or data() where there are no rows(). Unless it is plain(), few
  // and short texts are copied, and no reference to them is taken: they lie all over memory, and counting references would
  // fetch each of them twice, and write it back.
  enum class Wanted { kPlain, kKeys, kRows };
  KeyBatch(pybind11::handle keys, uint64_t tenant, Wanted wanted = Wanted::kKeys, KeyForm form = KeyForm::kClient);
  KeyBatch(const KeyBatch&) = delete;
  KeyBatch& operator=(const KeyBatch&) = delete;
  // Null: they are no rows of one array, or those were not wanted.
  const maru_key_rows* rows() const { return are_rows_ ? &rows_ : nullptr; }
  const maru_key* data() const { return keys_; }
  size_t size() const { return size_; }
  uint32_t bytes_of(size_t i) const {
    return !are_rows_ ? keys_[i].size : rows_.sizes != nullptr ? rows_.sizes[i] : rows_.size;
  }
  bool is_array() const { return is_array_; }
  // Key i, if they are kept, as OneKey's; a row of an array is a Digest.
  pybind11::object plain(size_t i) const;

 private:
  static constexpr size_t kFew = 256;
  static constexpr size_t kShort = 128;  // bytes

  // What few keys need, 41 KiB: too much for the stacks that some programs give their threads. Nothing is zeroed.
  struct Scratch {
    maru_key keys[kFew];
    PyObject* kept[kFew];
    uint32_t sizes[kFew];
    alignas(64) char texts[kFew * kShort];  // each in one line of the cache, or in two
  };
  // One stays for the next batch, so that its lines stay in the processor's cache; the GIL guards it.
  struct GiveBack {
    void operator()(Scratch* scratch) const;
  };
  static Scratch* take_scratch();

  // A reference to each item: a list could be changed by another thread meanwhile.
  struct Kept {
    Kept() = default;
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() {
      for (size_t i = 0; i < n; ++i) Py_DECREF(items[i]);
    }
    std::unique_ptr<PyObject*[]> many;
    PyObject** items = nullptr;
    size_t n = 0;
  };

  void read_array(uint64_t tenant, Wanted wanted);
  bool copy_texts(PyObject* const* items, size_t n, uint64_t tenant, Wanted wanted);
  void read_items(PyObject* const* items, size_t n, uint64_t tenant, KeyForm form);
  void take_rows(const maru_key_rows& rows, size_t n, Wanted wanted);
  void take_array(const uint8_t* rows, Py_ssize_t n, Py_ssize_t width, uint64_t tenant, Wanted wanted);
  void make_room(size_t size);
  void count_keys(size_t size);

  static Scratch* spare_;  // null while a batch uses it

  std::unique_ptr<Scratch, GiveBack> scratch_{take_scratch()};
  bool is_array_ = false, are_rows_ = false;
  size_t size_ = 0;
  maru_key_rows rows_;
  std::unique_ptr<maru_key[]> many_;  // not zeroed: every one is written
  maru_key* keys_ = scratch_->keys;
  pybind11::object array_;
  Kept kept_;
  std::list<HeldBuffer> buffers_;
};

}  // namespace maru_python
