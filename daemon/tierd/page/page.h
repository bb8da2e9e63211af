// The page for browsers: the files beside this one, and the style and drawing of marud's page, put into the program when it is
// built (daemon/http/page/embed.py).
#pragma once

#include <string_view>

namespace maru::tierd {

extern const std::string_view kPageText, kPageStyle, kPageScript, kPageDrawing;

}  // namespace maru::tierd
