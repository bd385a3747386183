// Starts the executables of a program on the devices.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "executor/program/program.h"
#include "pjrt/executable.h"

namespace torch_xla::executor {

// Tells whether the plugin takes an executable of this text for cheap, and may be wrong.
bool needs_gate(const pjrt::Executable& executable, std::string_view stablehlo);

// Starts a program asynchronously, on a device, for launch() (run.h). The arrays have a buffer
// on each of its devices. Those whose buffers the program reuses are gone afterwards, but for those
// in the places `kept`. One that the caller waits for at once may run within the call. `is_eager`
// is for the metrics. Throws pjrt::Error. Called with the GraphLock.
pjrt::Executable::ArrayResult start(const Program& program, std::vector<const pjrt::Array*> arrays,
                                    const PackedNumbers& numbers, int device, bool is_awaited,
                                    std::span<const int64_t> kept, bool is_eager);

}  // namespace torch_xla::executor
