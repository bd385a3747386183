// Values that one thread has read, and another one has launched before it came to that. A call with
// one result becomes data (lazy::Node); of a call with several the data is found here, where it
// exchanges something: an exchange happens once. Callers hold the GraphLock.
#pragma once

#include <vector>

#include "lazy/node.h"

namespace torch_xla::executor {

// Notes what the results of a run are from now on.
void note_launched(const std::vector<lazy::Value>& results, const std::vector<lazy::Value>& leaves);
// Returns the data of such a value, or the value.
lazy::Value if_launched(const lazy::Value& value);

}  // namespace torch_xla::executor
