// Text that came from outside, made fit for a line of a log or for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace maru::daemon {

// The text with '?' for each control character, and for each byte that is not UTF-8. Control characters are C0, DELETE, and C1,
// which terminals obey as they do escape sequences. A byte that is not UTF-8 makes the journal keep the line as a blob.
// Characters of `kept`, which are ASCII, stay. Cut to at most `bytes_max` bytes, between characters.
std::string plain_text(std::string_view text, size_t bytes_max = std::string_view::npos, std::string_view kept = {});

std::string in_quotes(std::string_view text);

}  // namespace maru::daemon
