#include "fast/device_weights.h"

#include <algorithm>
#include <algorithm>
#include <cmath>

#include "fast/random_weights.h"
#include "model/error.h"
#include "model/float_formats.h"

namespace lockstep::fast {
namespace {

using kernels::Device;
using kernels::DeviceArray;

// Packs on the host, copies to one device.
class Loader {
 public:
  Loader(Device& device, const ModelConfig& config, const NumericsOptions& numerics) : device_(device), config_(config), numerics_(numerics) {}

  DeviceArray<float> Floats(const TensorView& tensor) {
    if (tensor.empty()) return {};
    return Array<float>(tensor.elements(), tensor.name, [&](float* values) {
      const std::vector<float> all = tensor.Floats();
      for (float v : all) {
        if (!std::isfinite(v)) throw InputError(tensor.file + ": tensor " + tensor.name + " holds a value that is not finite");
      }
      std::copy(all.begin(), all.end(), values);
    });
  }

  DeviceLinear Linear(const LinearWeight& weight, bool quantize_input = true) {
    DeviceLinear linear;
    linear.name = weight.name;
    linear.spec = kernels::MakeLinearSpec(weight, numerics_, config_.weight_block_size, quantize_input);
    linear.blob = IsRandom(weight) ? Random(weight, linear.spec, weight.name)
                                   : Array<std::byte>(linear.spec.bytes, weight.name,
                                                      [&](std::byte* packed) { kernels::PackLinear(weight, linear.spec, packed); });
    return linear;
  }

  DeviceHc Hc(const HcWeights& weights) { return {Floats(weights.fn), Floats(weights.base), Floats(weights.scale)}; }

  DeviceCompressor Compressor(const CompressorWeights& weights, std::int64_t width) {
    DeviceCompressor compressor;
    compressor.wkv = Linear(weights.wkv);
    if (weights.wgate) compressor.wgate = Linear(*weights.wgate);
    compressor.ape = Floats(weights.ape);
    compressor.norm = Floats(weights.norm);
    compressor.overlap = weights.wkv.out_features == 2 * width;
    return compressor;
  }

  DeviceExpert Expert(const ExpertWeights& weights) {
    DeviceExpert expert;
    expert.spec = kernels::MakeExpertSpec(weights, numerics_, config_.weight_block_size);
    expert.blob = IsRandom(weights.w1) ? Random(weights, expert.spec, weights.w1.name)
                                       : Array<std::byte>(expert.spec.bytes, weights.w1.name,
                                                          [&](std::byte* packed) { kernels::PackExpert(weights, expert.spec, packed); });
    return expert;
  }

  DeviceEngram Engram(const EngramWeights& weights) {
    return {Linear(weights.wkv), Array<float>(weights.q_weight.elements(), "engram gate", [&](float* qk) {
              const std::vector<float> q = weights.q_weight.Floats(), k = weights.k_weight.Floats();
              for (std::size_t i = 0; i < q.size(); ++i) qk[i] = q[i] * k[i];
            })};
  }

  DeviceLayer Layer(const LayerWeights& w) {
    DeviceLayer layer;
    layer.attn_norm = Floats(w.attn_norm);
    layer.ffn_norm = Floats(w.ffn_norm);
    layer.q_norm = Floats(w.q_norm);
    layer.kv_norm = Floats(w.kv_norm);
    layer.sink = Floats(w.attn_sink);
    layer.hc_attn = Hc(w.hc_attn);
    layer.hc_ffn = Hc(w.hc_ffn);
    layer.wq_a = Linear(w.wq_a);
    layer.wq_b = Linear(w.wq_b);
    layer.wkv = Linear(w.wkv);
    for (const LinearWeight& group : w.wo_a) layer.wo_a.push_back(Linear(group, /*quantize_input=*/false));
    const auto alike = [&](const DeviceLinear& group) { return group.spec == layer.wo_a.front().spec; };
    if (layer.wo_a.size() > 1 && std::all_of(layer.wo_a.begin(), layer.wo_a.end(), alike)) {
      for (const DeviceLinear& group : layer.wo_a) layer.wo_a_blobs.push_back(group.blob.data());
    }
    layer.wo_b = Linear(w.wo_b);
    if (w.compressor) layer.compressor = Compressor(*w.compressor, config_.head_dim);
    if (w.indexer.compressor) layer.index_compressor = Compressor(*w.indexer.compressor, config_.index_head_dim);
    if (w.indexer.wq_b) layer.index_wq_b = Linear(*w.indexer.wq_b);
    if (w.indexer.weights_proj) layer.index_weights = Linear(*w.indexer.weights_proj);
    if (w.indexer.wk) layer.index_wk = Linear(*w.indexer.wk);
    layer.index_k_norm = Floats(w.indexer.k_norm);
    layer.gate = Floats(w.gate_weight);
    layer.gate_bias = Floats(w.gate_bias);
    if (!w.tid2eid.empty()) {
      layer.tid2eid = Array<std::int64_t>(w.tid2eid.elements(), w.tid2eid.name, [&](std::int64_t* ids) {
        for (std::int64_t i = 0; i < w.tid2eid.elements(); ++i) ids[i] = w.tid2eid.At<std::int64_t>(i);
      });
    }
    layer.shared_expert = Expert(w.shared_expert);
    if (w.engram) layer.engram = Engram(*w.engram);
    return layer;
  }

  DeviceArray<std::uint16_t> Embedding(const TensorView& table) {
    return Array<std::uint16_t>(table.elements(), table.name, [&](std::uint16_t* values) {
      for (std::int64_t i = 0; i < table.elements(); ++i) {
        const float value = table.Float(i);
        if (!std::isfinite(value)) throw InputError(table.file + ": tensor " + table.name + " holds a value that is not finite");
        values[i] = FloatToBF16(value);
      }
    });
  }

 private:
  // `make` fills `count` values on the host; it is not asked to where nothing is stored.
  template <typename T, typename Make>
  DeviceArray<T> Array(std::int64_t count, std::string_view what, const Make& make) {
    DeviceArray<T> array(device_, static_cast<std::size_t>(count), what);
    if (count == 0 || !device_.stores()) return array;
    std::vector<T> values(static_cast<std::size_t>(count));
    make(values.data());
    Copy(array.bytes(), values.data(), values.size() * sizeof(T));
    return array;
  }

  template <typename Weights, typename Spec>
  DeviceArray<std::byte> Random(const Weights& weights, const Spec& spec, std::string_view what) {
    DeviceArray<std::byte> blob(device_, static_cast<std::size_t>(spec.bytes), what);
    if (device_.stores()) MakeRandom(device_.kernels(), device_.compute(), weights, spec, blob.data());
    return blob;
  }

  void Copy(std::byte* device, const void* host, std::size_t bytes) {
    device_.CopyIn(device_.compute(), device, static_cast<const std::byte*>(host), bytes);
    device_.Synchronize(device_.compute());
  }

  Device& device_;
  const ModelConfig& config_;
  const NumericsOptions& numerics_;
};

}  // namespace

DeviceModel LoadDeviceModel(kernels::Backend& backend, const Checkpoint& checkpoint, const NumericsOptions& numerics,
                            const std::vector<int>& device_of) {
  const auto on = [&](int device) { return Loader(backend.device(device), checkpoint.config, numerics); };
  DeviceModel model;
  model.embed = on(device_of.front()).Embedding(checkpoint.weights.embed);
  for (std::size_t l = 0; l < checkpoint.weights.layers.size(); ++l) {
    model.layers.push_back(on(device_of[l]).Layer(checkpoint.weights.layers[l]));
  }
  Loader last = on(device_of.back());
  model.norm = last.Floats(checkpoint.weights.norm);
  model.head = last.Linear(checkpoint.weights.head);
  if (checkpoint.weights.hc_head) model.hc_head = last.Hc(*checkpoint.weights.hc_head);
  return model;
}

}  // namespace lockstep::fast
