// What most files of the binding include, compiled once where `-Db_pch=true` (as scripts/test has it). Every file includes what
// it needs all the same: other builds do without this.
#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <pybind11/pybind11.h>
#include <span>
#include <string>
#include <utility>
#include <vector>
