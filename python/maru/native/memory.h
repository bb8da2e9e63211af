// What a client holds in the pool, and the only way to its bytes: a memoryview of Pages.
//
//   Hold       keeps pages: a pin, a match, or a buffer being filled. Shared by the object that Python sees and by its Pages
//   Pages      exports bytes under a Hold; every memoryview refers to one, and so does every array made from a memoryview
//
// The pages are given back with the last reference to the Hold. That is why views, buffers and matches are no buffers
// themselves: some libraries (torch.frombuffer) keep the object that they were given but not its Py_buffer, and the object
// must then be one that holds the memory, which a memoryview is and a View after release() is not.
#pragma once

#include "attachment.h"

#include <memory>
#include <optional>

namespace maru_python {

class Hold {
 public:
  explicit Hold(std::shared_ptr<Attachment> attachment) : attachment_(std::move(attachment)) {}
  virtual ~Hold() = default;
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  const std::shared_ptr<Attachment>& attachment() const { return attachment_; }
  virtual bool has_pages() const { return true; }
  // Whether what shows them from here on may be written through.
  virtual bool is_writable() const { return false; }
  // The pin that this would end, for the caller to end with others; null when there is none.
  virtual std::optional<maru_view> take_pin() { return std::nullopt; }
  size_t exports() const { return exports_; }
  // Around the life of each Py_buffer. The first raises when the attachment is closed, or the pages are not the holder's.
  void begin_export();
  void end_export();

 private:
  std::shared_ptr<Attachment> attachment_;
  size_t exports_ = 0;
};

// A pin from maru_retrieve, maru_pin.
class PinHold : public Hold {
 public:
  PinHold(std::shared_ptr<Attachment> attachment, const maru_view& view) : Hold(std::move(attachment)), view_(view) {}
  ~PinHold() override;
  std::optional<maru_view> take_pin() override;

 private:
  maru_view view_;  // block 0 once it was taken
};

// The pins of a match.
class MatchHold : public Hold {
 public:
  MatchHold(std::shared_ptr<Attachment> attachment, const maru_match& match)
      : Hold(std::move(attachment)), match_(match) {}
  ~MatchHold() override;
  const maru_match& match() const { return match_; }

 private:
  maru_match match_;
};

// Pages being filled. Used up by a store; while one is under way in another thread, busy. Arrays may outlive a store: then the
// block is pinned as long as this, or, when the store was not needed, the pages are left over and are given back with this.
class BufferHold : public Hold {
 public:
  enum class State { kHeld, kBusy, kUsedUp, kPinned, kLeftOver };
  BufferHold(std::shared_ptr<Attachment> attachment, const maru_buffer& buffer)
      : Hold(std::move(attachment)), buffer_(buffer) {}
  ~BufferHold() override;

  const maru_buffer& buffer() const { return buffer_; }
  // Somebody may have kept the Pages, from which another memoryview can be made, also while and after a block is made of them.
  bool has_pages() const override { return state != State::kBusy && state != State::kUsedUp; }
  bool is_writable() const override { return state == State::kHeld; }
  void keep_pinned(const maru_view& view) {
    view_ = view;
    state = State::kPinned;
  }
  State state = State::kHeld;

 private:
  maru_buffer buffer_;
  maru_view view_{};  // kPinned
};

// Whether somebody has ended this memoryview, by release() or `with`: it shows nothing any more.
inline bool is_released(pybind11::handle memoryview) {
  return (reinterpret_cast<PyMemoryViewObject*>(memoryview.ptr())->flags & _Py_MEMORYVIEW_RELEASED) != 0;
}

// As memoryview.toreadonly(), and back, of this one memoryview: of what is made from it afterwards, too, and of nothing that
// was made from it before.
inline void set_read_only(pybind11::handle memoryview, bool is_read_only) {
  PyMemoryView_GET_BUFFER(memoryview.ptr())->readonly = is_read_only;
}

// A memoryview of new Pages, writable where the hold is.
pybind11::object view_of_pages(std::shared_ptr<Hold> hold, void* data, uint64_t bytes);

void define_pages(pybind11::module_& module);

}  // namespace maru_python
