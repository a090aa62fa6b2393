// SOFTSIGN. State: the mean m of gradients.
struct Softsign : AnyRule {
  TRIREME_RULE_OPTIONS(trireme_softsign_options, 24)
  static constexpr RuleNumber kNumbers[] = {TRIREME_NUMBER(beta1, beta1, open_unit, 0.9),
                                            TRIREME_NUMBER(limit, own[0], above_zero, 0.125)};

  static constexpr int states(int) { return 1; }

  template <class T, int>
  [[gnu::always_inline]] static void step(const Factors<T>& f, T& p, T g, T* s) {
    const T m = f.beta1 * s[0] + f.rest1 * g;
    const T size = m < T(0) ? -m : m;
    p -= f.rate * m / (size + f.own[0]);
    s[0] = m;
  }
};
