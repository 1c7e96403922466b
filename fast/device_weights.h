// Everything but routed experts, packed into the memory of the device that runs it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/linear/linear_layout.h"
#include "model/checkpoint.h"

namespace lockstep::fast {

struct DeviceLinear {
  std::string name;  // for messages
  kernels::LinearSpec spec;
  kernels::DeviceArray<std::byte> blob;
};

struct DeviceHc {
  kernels::DeviceArray<float> fn, base, scale;
};

struct DeviceCompressor {
  DeviceLinear wkv;
  std::optional<DeviceLinear> wgate;
  kernels::DeviceArray<float> ape, norm;
  bool overlap = false;
};

struct DeviceExpert {
  kernels::ExpertSpec spec;
  kernels::DeviceArray<std::byte> blob;
};

struct DeviceEngram {
  DeviceLinear wkv;
  kernels::DeviceArray<float> qk;  // q_weight * k_weight, [S][E]
};

struct DeviceLayer {
  kernels::DeviceArray<float> attn_norm, ffn_norm, q_norm, kv_norm, sink;
  DeviceHc hc_attn, hc_ffn;
  DeviceLinear wq_a, wq_b, wkv, wo_b;
  std::vector<DeviceLinear> wo_a;               // [G]
  std::vector<const std::byte*> wo_a_blobs;     // [G], if several have one spec: then they run as one; else empty
  std::optional<DeviceCompressor> compressor, index_compressor;
  std::optional<DeviceLinear> index_wq_b, index_weights, index_wk;
  kernels::DeviceArray<float> index_k_norm;
  kernels::DeviceArray<float> gate, gate_bias;
  kernels::DeviceArray<std::int64_t> tid2eid;
  DeviceExpert shared_expert;
  std::optional<DeviceEngram> engram;
};

struct DeviceModel {
  kernels::DeviceArray<std::uint16_t> embed;  // bf16 [V][E], on the first layer's device
  kernels::DeviceArray<float> norm;           // the rest on the last layer's device
  DeviceLinear head;
  std::optional<DeviceHc> hc_head;
  std::vector<DeviceLayer> layers;
};

// Packs and copies. device_of[layer] names the device. Throws InputError naming the tensor for weights that are not finite, or naming
// what did not fit.
DeviceModel LoadDeviceModel(kernels::Backend& backend, const Checkpoint& checkpoint, const NumericsOptions& numerics,
                            const std::vector<int>& device_of);

}  // namespace lockstep::fast
