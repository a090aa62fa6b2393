"""Two ranks train with the made-up rule by the Python binding; a plain loop knows every bit."""

import array
import threading

import trireme

COUNT, STEPS = 37, 5
RATE, DECAY, BETA1, LIMIT = 0.05, 0.01, 0.8, 0.25


def start():
    return [0.5 - 0.03125 * i for i in range(COUNT)]


def gradients(step):
    return [((7 * i + 3 * step) % 11 - 5) / 8 for i in range(COUNT)]


def plainly():
    values, means = start(), [0.0] * COUNT
    for step in range(STEPS):
        for i, g in enumerate(gradients(step)):
            g += DECAY * values[i]
            means[i] = BETA1 * means[i] + (1 - BETA1) * g
            values[i] -= RATE * means[i] / (abs(means[i]) + LIMIT)
    return values


def sealed(group, **options):
    model = trireme.Model(group, "zero2", **options)
    model.add_parameter("weight", [COUNT], dtype="f64")
    model.seal()
    return model


def train(rank, results):
    with trireme.Communicator(rank, 2, "local://exercise", timeout=60) as group:
        model = sealed(group, planned_rule="softsign", memory_limit_bytes=1 << 30)
        model.set_parameters(array.array("d", start()))
        rule = trireme.Softsign(beta1=BETA1, limit=LIMIT)
        with trireme.Optimizer(model, rule, learning_rate=RATE, weight_decay=DECAY) as optimizer:
            vectors = {each.vector for each in optimizer.ranges() if each.kind == "optimizer"}
            for step in range(STEPS):
                model.accumulate_flat(array.array("d", gradients(step)))
                optimizer.step()
            results[rank] = (list(model.get_parameters()), vectors)


def refused(group, **options):
    try:
        trireme.Optimizer(sealed(group), trireme.Softsign(**options))
    except trireme.InvalidArgumentError as problem:
        return str(problem)
    raise AssertionError(f"{options} are taken")


def main():
    results = [None, None]
    ranks = [threading.Thread(target=train, args=(rank, results)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    for values, vectors in results:
        assert values == plainly(), "the bits are not those of the plain loop"
        assert vectors == {0}, vectors
    assert trireme.optimizer_name("softsign") == "softsign"
    with trireme.Communicator(0, 1, "local://exercise-refused") as group:
        words = refused(group, limit=-1.0)
        assert "options.rule.limit -1 is not finite and above 0" in words, words
        words = refused(group, beta1=1.0)
        assert "options.rule.beta1 1 is not in (0, 1)" in words, words
        trireme.Optimizer(sealed(group), "softsign").close()
    print(f"{STEPS} steps of {COUNT} elements have the bits of a plain loop")


if __name__ == "__main__":
    main()
