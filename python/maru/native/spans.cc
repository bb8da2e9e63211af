#include "spans.h"

#include "arguments.h"
#include "arrays.h"
#include "client.h"
#include "errors.h"
#include "held.h"
#include "keys.h"
#include "pins.h"
#include "without_gil.h"

#include <cerrno>
#include <vector>

namespace py = pybind11;
using namespace py::literals;

namespace maru_python {
namespace {

// A result and its pins, for as long as one of its views is shown.
class FoundHold : public Hold {
 public:
  FoundHold(std::shared_ptr<OpenSpans> open, const maru_found_spans& found)
      : Hold(open->attachment()), open_(std::move(open)), found_(found) {}
  ~FoundHold() override {
    attachment()->give_back(true, [&](maru_client*) { maru_release_spans(open_->c(), &found_); });
  }
  const maru_found_spans& found() const { return found_; }

 private:
  std::shared_ptr<OpenSpans> open_;
  maru_found_spans found_;
};

// Tokens as the module blend.py has packed them: 4 bytes each.
class Tokens {
 public:
  explicit Tokens(py::handle packed) : buffer_(packed, HeldBuffer::Wanted::kBytes) {
    if (buffer_.get().len % 4 != 0 || reinterpret_cast<uintptr_t>(buffer_.get().buf) % 4 != 0)
      raise_named("InvalidArgumentError", "Tokens are numbers of 4 bytes each: give an array of uint32.");
  }
  const uint32_t* data() const { return static_cast<const uint32_t*>(buffer_.get().buf); }
  size_t size() const { return size_t(buffer_.get().len) / 4; }
  void expect(uint32_t window) const {
    if (size() == window) return;
    raise_named("InvalidArgumentError", "There are " + std::to_string(size()) + " tokens, expected those of a chunk, " +
                                            std::to_string(window) + ".");
  }

 private:
  HeldBuffer buffer_;
};

// The structure refers to tokens and note, which stay the caller's.
maru_span_chunk chunk_of(const Tokens& tokens, uint64_t position, const HeldBuffer& note, uint64_t ttl_ms,
                         uint32_t priority) {
  if (note.get().len > Py_ssize_t{MARU_SPAN_NOTE_BYTES_MAX})
    raise_named("InvalidArgumentError", "The note has " + std::to_string(note.get().len) + " bytes, expected at most " +
                                            std::to_string(MARU_SPAN_NOTE_BYTES_MAX) + ".");
  maru_span_chunk chunk = {};
  chunk.size = sizeof(chunk);
  chunk.tokens = tokens.data();
  chunk.position = position;
  chunk.note = note.get().buf;
  chunk.note_bytes = uint32_t(note.get().len);
  chunk.ttl_ms = ttl_ms;
  chunk.priority = priority;
  return chunk;
}

template <typename Call>
int without_gil(Call&& call) {
  const WithoutGil released;
  return call();
}

py::tuple span_of(const std::shared_ptr<Hold>& hold, const maru_span& span) {
  py::list views = new_list(span.views_count);
  for (uint32_t i = 0; i < span.views_count; ++i)
    PyList_SET_ITEM(views.ptr(), Py_ssize_t(i), new_view(hold, span.views[i]).release().ptr());
  const py::bytes note(static_cast<const char*>(span.note), span.note_bytes);
  return py::make_tuple(span.old_start, span.old_end, span.new_start, span.new_end, span.kind, span.block, note, views);
}

}  // namespace

OpenSpans::OpenSpans(std::shared_ptr<Attachment> attachment, maru_client* client, py::handle space, uint32_t window,
                     uint64_t tenant, uint32_t occupants)
    : attachment_(std::move(attachment)), window_(window), tenant_(tenant) {
  const HeldBuffer name(space, HeldBuffer::Wanted::kBytes);
  maru_spans_options options = {};
  options.size = sizeof(options);
  options.space = name.get().buf;
  options.space_bytes = uint32_t(std::min<Py_ssize_t>(name.get().len, MARU_SPAN_SPACE_BYTES_MAX + 1));
  options.window = window;
  options.tenant = tenant;
  options.occupants = occupants;
  check(maru_open_spans(client, &options, &spans_), "maru_open_spans");
}

OpenSpans::~OpenSpans() { maru_close_spans(spans_); }

const OpenSpans& Spans::open() const {
  if (open_ == nullptr) raise_named("ClosedError", "Spans are made by maru.blend.Spans(client, ...).");
  return *open_;
}

bool Spans::store(py::handle tokens, uint64_t position, py::handle data, py::handle note, uint64_t ttl_ms,
                  uint32_t priority) const {
  const Use use(*open().attachment());
  const Tokens packed(tokens);
  packed.expect(window());
  const HeldBuffer payload(data, HeldBuffer::Wanted::kBytes), beside(note, HeldBuffer::Wanted::kBytes);
  refuse_objects(data);
  const maru_span_chunk chunk = chunk_of(packed, position, beside, ttl_ms, priority);
  const int status = without_gil([&] {
    return maru_store_span_copy(open_->c(), &chunk, payload.get().buf, uint64_t(payload.get().len), nullptr);
  });
  return check(status, "maru_store_span_copy") == 0;
}

bool Spans::name(py::handle tokens, uint64_t position, uint64_t deepest, uint32_t blocks, py::handle note,
                 uint64_t ttl_ms, uint32_t priority) const {
  const Use use(*open().attachment());
  const Tokens packed(tokens);
  packed.expect(window());
  const HeldBuffer beside(note, HeldBuffer::Wanted::kBytes);
  const maru_span_chunk chunk = chunk_of(packed, position, beside, ttl_ms, priority);
  const int status = without_gil([&] { return maru_name_span(open_->c(), &chunk, deepest, blocks, nullptr); });
  return check(status, "maru_name_span") == 0;
}

int Spans::forget(py::handle tokens) const {
  const Use use(*open().attachment());
  const Tokens packed(tokens);
  packed.expect(window());
  return check(without_gil([&] { return maru_forget_span(open_->c(), packed.data()); }), "maru_forget_span");
}

py::tuple Spans::find(py::handle tokens, py::handle prefix_keys, uint64_t prefix_key_tokens, uint64_t first,
                      uint64_t step, uint64_t tokens_min, uint64_t spans_max, uint32_t flags) const {
  const Use use(*open().attachment());
  const Tokens packed(tokens);
  const KeyBatch keys(prefix_keys, tenant());
  maru_find_spans_options options = {};
  options.size = sizeof(options);
  options.prefix_keys = keys.data();
  options.prefix_keys_count = keys.size();
  options.prefix_key_tokens = prefix_key_tokens;
  options.first = first;
  options.step = step;
  options.tokens_min = tokens_min;
  options.spans_max = spans_max;
  options.flags = flags;
  maru_found_spans found = {};
  check(without_gil([&] { return maru_find_spans(open_->c(), packed.data(), packed.size(), &options, &found); }),
        "maru_find_spans");
  std::shared_ptr<FoundHold> hold;
  try {
    hold = std::make_shared<FoundHold>(open_, found);
  } catch (...) {
    maru_release_spans(open_->c(), &found);
    throw;
  }
  std::vector<maru_view> prefix(found.prefix.blocks);
  if (!prefix.empty())
    check(maru_resolve(use.client(), &hold->found().prefix, keys.data(), prefix.size(), prefix.data()), "maru_resolve");
  py::list prefix_views = new_list(prefix.size());
  for (size_t i = 0; i < prefix.size(); ++i)
    PyList_SET_ITEM(prefix_views.ptr(), Py_ssize_t(i), new_view(hold, prefix[i]).release().ptr());
  py::list spans = new_list(found.count);
  for (size_t i = 0; i < found.count; ++i)
    PyList_SET_ITEM(spans.ptr(), Py_ssize_t(i), span_of(hold, found.spans[i]).release().ptr());
  return py::make_tuple(found.prefix_tokens, prefix_views, found.prefix.deepest, spans, found.rejected);
}

py::object Client::open_spans(py::handle space, py::handle window, py::handle tenant, py::handle occupants) const {
  const Use use(attachment());
  return object_of(std::make_unique<Spans>(std::make_shared<OpenSpans>(
      attachment_, use.client(), space, uint32_t(number_of(window, "window", MARU_SPAN_WINDOW_MAX)),
      tenant_of(use.client(), tenant), uint32_t(number_of(occupants, "occupants", MARU_SPAN_OCCUPANTS_MAX)))));
}

void define_spans(py::module_& module) {
  const auto whole = [](py::handle value, const char* name) { return number_of(value, name, UINT64_MAX); };
  const auto word = [](py::handle value, const char* name) { return uint32_t(number_of(value, name, UINT32_MAX)); };
  py::class_<Spans>(module, "Spans", "The chunks of one model, layout, tenant and length: see maru.blend.Spans.")
      .def_property_readonly("window", &Spans::window)
      .def_property_readonly("tenant", &Spans::tenant)
      .def(
          "store",
          [=](const Spans& self, py::handle tokens, py::handle position, py::handle data, py::handle note,
              py::handle ttl_ms, py::handle priority) {
            return self.store(tokens, whole(position, "position"), data, note, whole(ttl_ms, "ttl_ms"),
                              word(priority, "priority"));
          },
          "tokens"_a, "position"_a, "data"_a, "note"_a, "ttl_ms"_a, "priority"_a)
      .def(
          "name",
          [=](const Spans& self, py::handle tokens, py::handle position, py::handle deepest, py::handle blocks,
              py::handle note, py::handle ttl_ms, py::handle priority) {
            return self.name(tokens, whole(position, "position"), whole(deepest, "deepest"), word(blocks, "blocks"),
                             note, whole(ttl_ms, "ttl_ms"), word(priority, "priority"));
          },
          "tokens"_a, "position"_a, "deepest"_a, "blocks"_a, "note"_a, "ttl_ms"_a, "priority"_a)
      .def("forget", &Spans::forget, "tokens"_a)
      .def(
          "find",
          [=](const Spans& self, py::handle tokens, py::handle prefix_keys, py::handle prefix_key_tokens,
              py::handle first, py::handle step, py::handle tokens_min, py::handle spans_max, py::handle flags) {
            return self.find(tokens, prefix_keys, whole(prefix_key_tokens, "prefix_key_tokens"), whole(first, "first"),
                             whole(step, "step"), whole(tokens_min, "tokens_min"), whole(spans_max, "spans_max"),
                             word(flags, "flags"));
          },
          "tokens"_a, "prefix_keys"_a, "prefix_key_tokens"_a, "first"_a, "step"_a, "tokens_min"_a, "spans_max"_a,
          "flags"_a);
}

}  // namespace maru_python
