// Rules whose step for a parameter depends on its norm: LAMB and LARS. So does ADAFACTOR: see
// adafactor.hpp.
#pragma once

#include <cmath>

#include "optimizer/rules/settings.hpp"

namespace trireme::optimizers {

// Whether a step needs norms of whole parameters.
inline bool needs_norms(const Settings& settings) {
  return settings.rule.kind == TRIREME_RULE_LAMB || settings.rule.kind == TRIREME_RULE_LARS ||
         settings.rule.kind == TRIREME_RULE_ADAFACTOR;
}

// The factor of a parameter's learning rate. `other_norm` is the norm of its direction (LAMB) or
// gradient (LARS).
inline double trust_ratio(const Settings& settings, double weight_decay, double parameter_norm,
                          double other_norm) {
  double ratio = parameter_norm;
  if (settings.rule.kind == TRIREME_RULE_LAMB) {
    ratio /= other_norm;
  } else {
    ratio = settings.rule.trust_coefficient * ratio /
            (other_norm + weight_decay * parameter_norm + settings.rule.epsilon);
  }
  // It is 1 also if one of them is NaN: then the step is that of a rule without norms.
  if (!(ratio > 0) || !std::isfinite(ratio)) ratio = 1;
  return settings.rule.max_trust > 0 && ratio > settings.rule.max_trust ? settings.rule.max_trust
                                                                        : ratio;
}

}  // namespace trireme::optimizers
