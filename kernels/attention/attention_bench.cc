// Attention in V4.1's sizes, one thread: BM_SparseAttnDecode/{N}/{isa}, BM_SparseAttnPrefill/{rows}/{N}/{isa},
// N selected entries beside a full window. Profile sm90; on the CPU its tensor cores are emulated, so
// BM_SparseAttnDecodeFma is there too.
#include "kernels/attention/attention_cases.h"
#include "kernels/testing/bench.h"

namespace lockstep::kernels {
namespace {

void Register(const std::string& name, Profile profile, const AttentionCase& shape) {
  RegisterProblem<AttentionProblem>(name, profile, [shape] { return AttentionProblem(shape); });
}

void RegisterAll() {
  for (const std::int64_t selected : {0, 512}) {
    Register("BM_SparseAttnDecode/" + std::to_string(selected), Profile::kSm90, V41Attention(1, selected));
    Register("BM_SparseAttnDecodeFma/" + std::to_string(selected), Profile::kFma, V41Attention(1, selected));
  }
  Register("BM_SparseAttnPrefill/16/512", Profile::kSm90, V41Attention(16, 512));
}

}  // namespace
}  // namespace lockstep::kernels

int main(int argc, char** argv) {
  lockstep::kernels::RegisterAll();
  return lockstep::kernels::RunBenchmarks(argc, argv);
}
