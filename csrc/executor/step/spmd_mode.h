// Enters SPMD mode, in which all devices are one.
#pragma once

namespace torch_xla::executor {

// Makes all devices one logical device from now on; waits for what runs. Tensors on xla:0 stay
// valid: their data is copied to the other devices when it is next used. Returns whether there may
// be such data; throws where another device has tensors.
bool use_spmd();

}  // namespace torch_xla::executor
