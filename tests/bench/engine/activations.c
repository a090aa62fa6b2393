/* A step of a trainer whose activations stay in memory. Beside it, one that keeps a window of them
 * and has the others in a file. */
#include "engine.h"

enum {
    UNITS = 16,
    FLOATS = 2 << 20 /* elements of an output, and of the saved activations */,
    PASSES = 4
};

/* Some work for each element, in pieces that stay in the nearest cache. */
static void work(float *to, const float *from) {
    enum { PIECE = 2048 };
    for (int first = 0; first < FLOATS; first += PIECE) {
        for (int i = first; i < first + PIECE; ++i) to[i] = from != NULL ? from[i] : 1;
        for (int pass = 0; pass < PASSES; ++pass) {
            for (int i = first; i < first + PIECE; ++i) to[i] = to[i] * 0.75f + 0.25f;
        }
    }
}

static int32_t TRIREME_CALLCONV forward(const trireme_layer_call *call, void *user_data) {
    (void)user_data;
    work(call->saved, call->input);
    work(call->output, call->saved);
    if (call->loss != NULL) *call->loss = 0;
    return 0;
}

static int32_t TRIREME_CALLCONV backward(const trireme_layer_call *call, void *user_data) {
    (void)user_data;
    work(call->saved, call->saved);
    if (call->input_gradient != NULL) work(call->input_gradient, call->output_gradient);
    *(float *)call->gradients[0] = 0;
    return 0;
}

static double step_of(trireme_trainer *trainer) {
    const double begin = now_us();
    MUST(trireme_trainer_step(trainer, NULL, NULL));
    return now_us() - begin;
}

static double waited_by(const trireme_trainer *trainer) {
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    MUST(trireme_trainer_get_offload_info(trainer, &info));
    return info.waited_seconds * 1e6;
}

void row_activations(void) {
    static const char *const NAMES[] = {"activations_memory", "activations_half",
                                        "activations_window"};
    static trireme_layer layers[UNITS];
    static char names[UNITS][16];
    for (int i = 0; i < UNITS; ++i) {
        snprintf(names[i], sizeof names[i], "layer%d", i);
        layers[i] = (trireme_layer)TRIREME_LAYER_INIT;
        layers[i].name = names[i];
        layers[i].first_parameter = (uint64_t)i;
        layers[i].parameter_count = 1;
        layers[i].forward = forward;
        layers[i].backward = backward;
        layers[i].output_bytes = layers[i].saved_bytes = FLOATS * sizeof(float);
    }
    const uint64_t size = 1, item = 2 * FLOATS * sizeof(float);
    struct way ways[3];
    trireme_trainer *trainers[3];
    static double waited[3][MOST_ROUNDS];
    for (int i = 0; i < 3; ++i) {
        ways[i] = (struct way){.name = NAMES[i], .strategy = TRIREME_STRATEGY_DATA_PARALLEL};
        make(&ways[i], UNITS, &size, 1);
        trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
        trireme_offload_options file = TRIREME_OFFLOAD_OPTIONS_INIT;
        if (i > 0) {
            file.path = folder;
            file.buffer_bytes = (uint64_t)(i == 1 ? UNITS / 2 : 4) * item;
            options.offload = &file;
        }
        MUST(trireme_trainer_create(ways[i].optimizer, layers, UNITS, &options, &trainers[i]));
    }
    for (int round = -1; round < rounds; ++round) {
        for (int i = 0; i < 3; ++i) {
            const double before = i > 0 ? waited_by(trainers[i]) : 0;
            const double time = step_of(trainers[i]);
            if (round < 0) continue;
            ways[i].times[round] = time;
            waited[i][round] = i > 0 ? waited_by(trainers[i]) - before : 0;
        }
    }
    for (int i = 0; i < 3; ++i) {
        char name[64];
        trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
        MUST(trireme_trainer_get_info(trainers[i], &info));
        print_rounds(NAMES[i], ways[i].times);
        snprintf(name, sizeof name, "%s_bytes", NAMES[i]);
        print_number(name, (double)(info.planned_window_bytes + info.planned_stretch_bytes +
                                    info.planned_gradient_bytes));
        if (i > 0) {
            trireme_offload_info file = TRIREME_OFFLOAD_INFO_INIT;
            MUST(trireme_trainer_get_offload_info(trainers[i], &file));
            snprintf(name, sizeof name, "%s_waited", NAMES[i]);
            print_rounds(name, waited[i]);
            snprintf(name, sizeof name, "%s_moved", NAMES[i]);
            print_number(name, 2 * (double)file.file_bytes);
        }
        trireme_trainer_destroy(trainers[i]);
        unmake(&ways[i]);
    }
}
