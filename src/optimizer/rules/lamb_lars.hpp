// Rules that go as far for a whole parameter as its norm says: LAMB and LARS. ADAFACTOR does, too:
// see adafactor.hpp.
#pragma once

#include <cmath>

#include "optimizer/rules/settings.hpp"

namespace trireme::optimizers {

// Whether a step needs norms of whole parameters.
inline bool needs_norms(const Settings& settings) {
  return settings.rule.kind == TRIREME_RULE_LAMB ||
         settings.rule.kind == TRIREME_RULE_LARS ||
         settings.rule.kind == TRIREME_RULE_ADAFACTOR;
}

// By what the learning rate of a parameter is multiplied. `other_norm` is that of its direction
// (LAMB) or gradient (LARS).
inline double trust_ratio(const Settings& settings, double weight_decay, double parameter_norm,
                          double other_norm) {
  double ratio = parameter_norm;
  if (settings.rule.kind == TRIREME_RULE_LAMB) {
    ratio /= other_norm;
  } else {
    ratio = settings.trust_coefficient * ratio /
            (other_norm + weight_decay * parameter_norm + settings.rule.epsilon);
  }
  // Also if one of them is no number: then the step is that of a rule without norms.
  if (!(ratio > 0) || !std::isfinite(ratio)) ratio = 1;
  return settings.max_trust > 0 && ratio > settings.max_trust ? settings.max_trust : ratio;
}

}  // namespace trireme::optimizers
