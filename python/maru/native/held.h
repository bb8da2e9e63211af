// What Python sees of what a client holds: Buffer and Match here, Pin and View in pins.h. Each gives back what it holds with
// release() or abort(), at the end of a `with`, or when it is dropped; but never before the last memoryview of it is gone.
#pragma once

#include "memory.h"

#include <memory>
#include <pybind11/pybind11.h>
#include <vector>

namespace maru_python {

class Buffer : public ZeroedMemory {
 public:
  Buffer(std::shared_ptr<Attachment> attachment, const maru_buffer& buffer)
      : hold_(std::make_shared<BufferHold>(std::move(attachment), buffer)),
        block_(buffer.block),
        bytes_(buffer.bytes) {}

  maru_block block() const { return block_; }
  uint64_t bytes() const { return bytes_; }
  bool is_held() const { return hold_ && hold_->state == BufferHold::State::kHeld; }
  // Writable; the same memoryview each time, until it is stored. A store counts who refers to it.
  pybind11::object data();
  // The pages go back when the last view of them is gone.
  void abort();

  // For a store: nobody else may write from now on. Without keep_views it raises ViewsHeldError while somebody could; with it,
  // is_shared() says whether somebody shows the memory. The memoryview that data() gave is read-only then; Python leaves no way
  // to what was made from it before.
  const maru_buffer& begin_store(bool keep_views);
  bool is_shared() const { return hold_->exports() != 0; }
  // How the store ended.
  void end_store(bool is_used_up);
  void end_shared_store(const maru_view& view);

 private:
  BufferHold& held() const;
  void take_views_back();
  void let_views_read();
  void let_views_write();

  std::shared_ptr<BufferHold> hold_;
  maru_block block_;
  uint64_t bytes_;
  pybind11::object data_;
  pybind11::object shown_;               // a weak reference to what was data_, while it is read-only because of a store
  std::vector<pybind11::object> ended_;  // memoryviews that were released while somebody referred to them
};

class Match : public ZeroedMemory {
 public:
  Match(std::shared_ptr<Attachment> attachment, const maru_match& match)
      : hold_(std::make_shared<MatchHold>(std::move(attachment), match)),
        blocks_(match.blocks),
        deepest_(match.deepest) {}

  size_t blocks() const { return blocks_; }
  maru_block deepest() const { return deepest_; }
  bool is_held() const { return hold_ != nullptr; }
  void release() { hold_.reset(); }
  pybind11::list resolve(pybind11::handle keys, pybind11::handle tenant);

 private:
  std::shared_ptr<MatchHold> hold_;
  size_t blocks_;
  maru_block deepest_;
};

// What Python sees of it. pybind11's own cast would free it twice where there is no memory to note which object it belongs to.
template <typename T>
pybind11::object object_of(std::unique_ptr<T> made) {
  auto* const type = reinterpret_cast<PyTypeObject*>(pybind11::type::of<T>().ptr());
  auto object = pybind11::reinterpret_steal<pybind11::object>(pybind11::detail::make_new_instance(type));
  auto* const instance = reinterpret_cast<pybind11::detail::instance*>(object.ptr());
  auto place = instance->get_value_and_holder(pybind11::detail::get_type_info(typeid(T)));
  place.value_ptr() = made.get();
  try {
    place.type->init_instance(instance, &made);  // takes it over as its last step
  } catch (...) {
    place.value_ptr() = nullptr;  // it is still ours
    throw;
  }
  return object;
}

void define_held(pybind11::module_& module);

}  // namespace maru_python
