// Tests without JSON include these. `-Db_pch=true` compiles them once; see daemon/pch/daemon.h. JSON's header uses templates
// itself, so it costs each file half a second, also a file that uses none of it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>
