// Which data lies on the devices, and which lines of the program made it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lazy/node.h"
#include "lazy/source.h"
#include "pjrt/buffer.h"

namespace torch_xla::executor {

// Makes a leaf of data on a device.
lazy::Value data_value(const lazy::Geometry* geometry, int device, lazy::DeviceData data);
// Makes an array data that is listed, and that the metrics count, while it lives. Data that no
// call has made is that of the line that the calling thread has reached.
lazy::DeviceData counted(pjrt::Array&& array, int device, const lazy::Source* maker = nullptr);

struct LiveData {
  const pjrt::Array* array;  // its address alone: it may be gone
  int device;
  int64_t bytes;      // on all real devices together
  std::string type;   // "Float[8,4]"
  std::string shape;  // "f32[8,4]{1,0}"
  lazy::Source maker;
};
// Returns the data that lives now, without what a run has taken over.
std::vector<LiveData> live_data();
// Returns the line that made it, for an error; "" where that is not known.
std::string line_of(const pjrt::Array& array);

// Returns their bytes on the fullest real device; on the CPU, which has one memory, on all.
int64_t live_bytes(int device);
// Says of the data that is there but for an error why it is lost (pjrt::Array::loss).
void note_lost_data(int device, const std::string& why);

// "1.5 MB": 10^6 bytes.
std::string size_text(int64_t bytes);
// Describes for an error what takes the memory: the lines that made the most, and how to let it go.
std::string describe_live_data();

}  // namespace torch_xla::executor
