// Most tests include these. `-Db_pch=true` compiles them once for each library; see daemon/pch/daemon.h.
#include "tests/pch/plain_tests.h"

#include <nlohmann/json.hpp>
