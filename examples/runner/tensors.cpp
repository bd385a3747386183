#include "tensors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

namespace runner {
namespace {

using nlohmann::json;

struct Half {
  uint16_t bits;
  operator float() const {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
    return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
};
struct BFloat16 {
  uint16_t bits;
  operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

template <class T>
T value_at(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The shortest text that reads as the same number.
template <class T, class Shown = T>
std::string text_at(const char* at) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), Shown{value_at<T>(at)}).ptr};
}

constexpr DType kDTypes[] = {
    {"bool", "BOOL", PJRT_Buffer_Type_PRED, 1, text_at<uint8_t, int>},
    {"uint8", "U8", PJRT_Buffer_Type_U8, 1, text_at<uint8_t, int>},
    {"int8", "I8", PJRT_Buffer_Type_S8, 1, text_at<int8_t, int>},
    {"uint16", "U16", PJRT_Buffer_Type_U16, 2, text_at<uint16_t>},
    {"int16", "I16", PJRT_Buffer_Type_S16, 2, text_at<int16_t>},
    {"uint32", "U32", PJRT_Buffer_Type_U32, 4, text_at<uint32_t>},
    {"int32", "I32", PJRT_Buffer_Type_S32, 4, text_at<int32_t>},
    {"uint64", "U64", PJRT_Buffer_Type_U64, 8, text_at<uint64_t>},
    {"int64", "I64", PJRT_Buffer_Type_S64, 8, text_at<int64_t>},
    {"float16", "F16", PJRT_Buffer_Type_F16, 2, text_at<Half, float>},
    {"bfloat16", "BF16", PJRT_Buffer_Type_BF16, 2, text_at<BFloat16, float>},
    {"float32", "F32", PJRT_Buffer_Type_F32, 4, text_at<float>},
    {"float64", "F64", PJRT_Buffer_Type_F64, 8, text_at<double>},
};

static_assert(std::endian::native == std::endian::little, "files hold elements as they lie here");

const DType* find(std::string_view DType::* field, std::string_view name) {
  const auto* found = std::ranges::find(kDTypes, name, field);
  if (found == std::end(kDTypes)) fail("expected a known dtype, got '", name, "'");
  return found;
}

Tensor tensor_of(const json& entry, std::span<const char> data) {
  Tensor tensor;
  tensor.type.dtype = find(&DType::safetensors, entry.at("dtype").get<std::string>());
  tensor.type.shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto [begin, end] = entry.at("data_offsets").get<std::pair<uint64_t, uint64_t>>();
  if (begin > end || end > data.size()) fail("expected offsets within ", data.size(), " bytes");
  if (end - begin != tensor.type.bytes()) {
    fail("expected ", tensor.type.bytes(), " bytes for ", tensor.type.str(), ", got ", end - begin);
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

const DType* dtype_named(std::string_view name) { return find(&DType::name, name); }

size_t Type::bytes() const {
  size_t bytes = dtype->size;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) {
      fail("expected a tensor that fits into memory, got ", str());
    }
  }
  return bytes;
}

std::string Type::str() const {
  std::string text(dtype->name);
  text += " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string elements_of(const Tensor& tensor) {
  constexpr size_t kMost = 8;
  const size_t size = tensor.type.dtype->size, count = tensor.bytes.size() / size;
  std::string text;
  for (size_t i = 0; i < std::min(count, kMost); ++i) {
    text += (i == 0 ? "" : " ") + tensor.type.dtype->text(tensor.bytes.data() + i * size);
  }
  return count > kMost ? text + " .. of " + tensor.type.str() : text;
}

std::vector<char> read_file(const std::filesystem::path& path) {
  std::vector<char> bytes(std::filesystem::file_size(path));  // throws where there is none
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) fail(path.string(), ": cannot be read");
  return bytes;
}

TensorFile::TensorFile(const std::filesystem::path& path) : path_(path), bytes_(read_file(path)) {
  const std::span<const char> all = bytes_;
  try {
    if (all.size() < sizeof(uint64_t)) fail("expected at least 8 bytes, got ", all.size());
    const auto length = value_at<uint64_t>(all.data());
    const std::span<const char> rest = all.subspan(sizeof length);
    if (length > rest.size()) {
      fail("expected a header of at most ", rest.size(), " bytes, got one of ", length);
    }
    const json header = json::parse(rest.data(), rest.data() + length);
    if (!header.is_object()) fail("expected a header that names tensors");
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      try {
        tensors_.emplace(name, tensor_of(entry, rest.subspan(length)));
      } catch (const std::exception& e) {
        fail(name, ": ", e.what());
      }
    }
  } catch (const std::exception& e) {
    fail(path.string(), ": not a safetensors file: ", e.what());
  }
}

const Tensor& TensorFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail(path_.string(), ": expected the tensor ", name, ", found none");
  return found->second;
}

void TensorFile::check(const std::string& name, const Type& type) const {
  if (const Type& found = at(name).type; found != type) {
    fail(path_.string(), ": expected ", name, " to be ", type.str(), ", got ", found.str());
  }
}

void write_tensors(const std::filesystem::path& path,
                   const std::map<std::string, Tensor>& tensors) {
  json header = json::object();
  size_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.type.dtype->safetensors},
                    {"shape", tensor.type.shape},
                    {"data_offsets", {end, end + tensor.bytes.size()}}};
    end += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // elements begin at a multiple of eight
  const uint64_t length = text.size();
  std::filesystem::path beside = path;
  beside += ".new";
  std::ofstream file(beside, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& [name, tensor] : tensors) {
    file.write(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  if (!file) fail(path.string(), ": cannot be written");
  std::filesystem::rename(beside, path);
}

}  // namespace runner
