#include "reference/engine.h"

#include <cmath>
#include <string>
#include <utility>

#include "model/error.h"
#include "reference/model.h"

namespace lockstep::reference {
namespace {

template <typename A>
class ReferenceSession : public Session {
 public:
  using Real = typename A::Real;

  // The model reads the checkpoint, so the session, which may outlive its engine, keeps both.
  ReferenceSession(std::shared_ptr<const Checkpoint> checkpoint, std::shared_ptr<Model<A>> model, SequenceState<Real> state)
      : checkpoint_(std::move(checkpoint)), model_(std::move(model)), state_(std::move(state)) {}

  std::int64_t position() const override { return state_.position; }

  std::vector<float> Append(std::span<const std::int32_t> ids, std::int64_t last_rows) override {
    LOCKSTEP_CHECK(last_rows >= 0 && last_rows <= static_cast<std::int64_t>(ids.size()));
    CheckIds(ids, state_.position, checkpoint_->config);
    if (ids.empty()) return {};
    const Matrix<Real> logits = model_->Forward(state_, ids, last_rows);
    const std::vector<float> out(logits.data(), logits.data() + logits.size());
    for (float value : out) {
      if (!std::isfinite(value)) throw InputError("head: a logit is not finite; the weights or activations overflow");
    }
    return out;
  }

  std::unique_ptr<Session> Fork() const override { return std::make_unique<ReferenceSession>(checkpoint_, model_, state_); }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::shared_ptr<Model<A>> model_;
  SequenceState<Real> state_;
};

template <typename A>
class ReferenceEngine : public Engine {
 public:
  ReferenceEngine(std::shared_ptr<const Checkpoint> checkpoint, const Options& options)
      : checkpoint_(std::move(checkpoint)), model_(std::make_shared<Model<A>>(*checkpoint_, options)) {}

  const ModelConfig& config() const override { return checkpoint_->config; }
  std::unique_ptr<Session> NewSession() override {
    return std::make_unique<ReferenceSession<A>>(checkpoint_, model_, model_->NewState());
  }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::shared_ptr<Model<A>> model_;
};

}  // namespace

std::unique_ptr<Engine> MakeEngine(std::shared_ptr<const Checkpoint> checkpoint, const Options& options) {
  if (options.truth) return std::make_unique<ReferenceEngine<Truth>>(std::move(checkpoint), options);
  return std::make_unique<ReferenceEngine<Contract>>(std::move(checkpoint), options);
}

}  // namespace lockstep::reference
