// The page for browsers: the files beside this one, put into the program when it is built (embed.py).
#pragma once

#include <string_view>

namespace maru::daemon::http {

extern const std::string_view kPageText, kPageStyle, kPageScript, kPageDrawing;

}  // namespace maru::daemon::http
