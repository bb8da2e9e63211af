// The result of the C++ interfaces of libraries with reasons: a value, or the errno and the sentence that say why there is
// none. layout.hpp and adapters.hpp include this file. Header only, needs no exceptions.
#ifndef MARU_ANSWER_HPP
#define MARU_ANSWER_HPP

#include <optional>
#include <string_view>
#include <utility>

namespace maru {
inline namespace api_0 {

// Why there is no value. Reason: the structure of the C interface; its `text` ends with a zero.
template <typename Reason>
struct RefusalWith {
  int code = 0;        // errno, positive; 0: nothing was refused
  Reason reason = {};  // a sentence; empty for a code alone
};

template <typename T, typename Reason>
class [[nodiscard]] AnswerWith {
 public:
  AnswerWith(T value) : value_(std::move(value)) {}
  AnswerWith(const RefusalWith<Reason>& refusal) : refusal_(refusal) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  int error() const { return refusal_.code; }  // 0 when there is a value
  std::string_view reason() const { return refusal_.reason.text; }

  // Only when ok().
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  RefusalWith<Reason> refusal_;
};

template <typename Reason>
class [[nodiscard]] AnswerWith<void, Reason> {
 public:
  AnswerWith() = default;
  AnswerWith(const RefusalWith<Reason>& refusal) : refusal_(refusal) {}

  bool ok() const { return refusal_.code == 0; }
  explicit operator bool() const { return ok(); }
  int error() const { return refusal_.code; }
  std::string_view reason() const { return refusal_.reason.text; }

 private:
  RefusalWith<Reason> refusal_;
};

}  // namespace api_0
}  // namespace maru

#endif
