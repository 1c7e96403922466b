#include "reference/testing/decoded_sequence.h"

#include <span>
#include <utility>

#include "reference/testing/oracle_files.h"
#include "reference/testing/same_bits.h"

namespace lockstep::reference {
namespace {

std::vector<float> LastLogits(Model<Contract>& model, SequenceState<float>& state,
                              std::span<const std::int32_t> ids) {
  const Matrix<float> logits = model.Forward(state, ids, 1);
  return {logits.data(), logits.data() + logits.size()};
}

}  // namespace

DecodedSequence::DecodedSequence(const ModelFiles& files, const Options& options, std::int64_t tokens)
    : options_(options) {
  auto steps = std::make_shared<Steps>();
  steps->checkpoint = OpenShared(files.dir);
  steps->ids = DrawIds(steps->checkpoint->config, tokens);
  model_ = std::make_unique<Model<Contract>>(*steps->checkpoint, options_);
  steps->states.push_back(model_->NewState());
  for (const std::int32_t& id : steps->ids) {
    SequenceState<float> state = steps->states.back();
    steps->logits.push_back(LastLogits(*model_, state, {&id, 1}));
    steps->states.push_back(std::move(state));
  }
  steps_ = std::move(steps);
}

DecodedSequence::DecodedSequence(std::shared_ptr<const Steps> steps, const Options& options)
    : steps_(std::move(steps)),
      options_(options),
      model_(std::make_unique<Model<Contract>>(*steps_->checkpoint, options_)) {}

std::vector<float> DecodedSequence::Run(SequenceState<float>& state, std::size_t begin, std::size_t end) {
  return LastLogits(*model_, state, std::span(steps_->ids).subspan(begin, end - begin));
}

testing::AssertionResult DecodedSequence::SameAsDecoded(const SequenceState<float>& state,
                                                        const std::vector<float>& logits,
                                                        std::size_t split) const {
  const testing::AssertionResult same = SameBits(logits, steps_->logits[split - 1]);
  if (!same) return testing::AssertionFailure() << "logits: " << same.message();
  return SameState(state, steps_->states[split]);
}

testing::AssertionResult DecodedSequence::WholePrefillIsSame(std::size_t split) {
  SequenceState<float> state = NewState();
  const std::vector<float> logits = Run(state, 0, split);
  return SameAsDecoded(state, logits, split);
}

}  // namespace lockstep::reference
