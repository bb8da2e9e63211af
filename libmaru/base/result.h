// Result<T>: an operating error (a system call, a device, a configuration) with errno and the attempted action.
#pragma once

#include <string>
#include <system_error>
#include <tl/expected.hpp>
#include <utility>

namespace maru {

struct Error {
  int code;           // errno, positive
  std::string doing;  // "map the control region (4 MiB)"

  std::string text() const { return doing + ": " + std::generic_category().message(code); }
};

template <typename T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> failure(int code, std::string doing) {
  return tl::unexpected<Error>(Error{code, std::move(doing)});
}

}  // namespace maru
