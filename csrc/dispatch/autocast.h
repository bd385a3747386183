#pragma once

namespace torch_xla::dispatch {

// Registers the policies that operators' traits name.
void register_autocast();

}  // namespace torch_xla::dispatch
