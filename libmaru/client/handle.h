// The definition of maru_client.
#pragma once

#include "libmaru/client/client.h"

#include <memory>

struct maru_client {
  std::unique_ptr<maru::client::Client> client;
};
