/* The cost of a trainer without computation and exchange: a whole step of layers that only write
 * their gradient, beside the same step by hand. */
#include "engine.h"

static int32_t TRIREME_CALLCONV do_nothing(const trireme_layer_call *call, void *user_data) {
    (void)call;
    (void)user_data;
    return 0;
}

/* A trainer refuses gradients that backward has not written. */
static int32_t TRIREME_CALLCONV write_gradient(const trireme_layer_call *call, void *user_data) {
    (void)user_data;
    *(float *)call->gradients[0] = 1;
    return 0;
}

enum { UNITS = 1000, STEPS = 50 };

static void step_by_hand(struct way *way) {
    const float gradient = 1;
    for (uint64_t unit = 0; unit < UNITS; ++unit) {
        MUST(trireme_model_gather_unit(way->model, unit));
        MUST(trireme_model_release_unit(way->model, unit));
    }
    MUST(trireme_model_begin_backward(way->model, 0));
    for (uint64_t unit = UNITS; unit-- > 0;) {
        MUST(trireme_model_gather_unit(way->model, unit));
        MUST(trireme_model_gradient_ready(way->model, unit, &gradient, 1, F32));
        MUST(trireme_model_release_unit(way->model, unit));
    }
    MUST(trireme_model_end_backward(way->model));
    MUST(trireme_optimizer_step(way->optimizer));
}

void row_trainer(void) {
    static trireme_layer layers[UNITS];
    static char names[UNITS][16];
    struct way by_hand = {.name = "trainer_by_hand", .strategy = TRIREME_STRATEGY_ZERO3};
    struct way way = {.name = "trainer", .strategy = TRIREME_STRATEGY_ZERO3};
    const uint64_t size = 1;
    make(&by_hand, UNITS, &size, 1);
    make(&way, UNITS, &size, 1);
    for (int i = 0; i < UNITS; ++i) {
        snprintf(names[i], sizeof names[i], "layer%d", i);
        layers[i] = (trireme_layer)TRIREME_LAYER_INIT;
        layers[i].name = names[i];
        layers[i].first_parameter = (uint64_t)i;
        layers[i].parameter_count = 1;
        layers[i].forward = do_nothing;
        layers[i].backward = write_gradient;
        layers[i].output_bytes = layers[i].saved_bytes = 64;
    }
    const trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    trireme_trainer *trainer = NULL;
    MUST(trireme_trainer_create(way.optimizer, layers, UNITS, &options, &trainer));
    for (int round = -1; round < rounds; ++round) {
        double best = 1e18, hand = 1e18;
        for (int step = 0; step < STEPS; ++step) {
            double begin = now_us();
            step_by_hand(&by_hand);
            double time = (now_us() - begin) / UNITS;
            if (time < hand) hand = time;
            begin = now_us();
            MUST(trireme_trainer_step(trainer, NULL, NULL));
            time = (now_us() - begin) / UNITS;
            if (time < best) best = time;
        }
        if (round < 0) continue;
        by_hand.times[round] = hand;
        way.times[round] = best;
    }
    print_rounds(by_hand.name, by_hand.times);
    print_rounds(way.name, way.times);
    trireme_trainer_destroy(trainer);
    unmake(&by_hand);
    unmake(&way);
}
