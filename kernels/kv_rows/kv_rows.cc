#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

std::int64_t RowFormat::row_bytes() const {
  std::int64_t bytes = 0;
  switch (kind) {
    case Kind::kBf16:
      bytes = 2 * std::int64_t{width};
      break;
    case Kind::kFp8:
      bytes = quantized + (quantized + block - 1) / block + 2 * std::int64_t{width - quantized};
      break;
    case Kind::kFp4E4M3:
    case Kind::kFp4E8M0:
    case Kind::kHadamardFp4:
      bytes = (width + 1) / 2 + (width + block - 1) / block;
      break;
  }
  return (bytes + 3) / 4 * 4;
}

}  // namespace lockstep::kernels
