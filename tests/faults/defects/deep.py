"""A deep transformer on data x tensor x pipeline ranks, and the example's layouts."""

DEFECTS = [
    ("deep: a stage rounds by the numbers of its own parameters", "src/sharding/registry.cpp",
     "parameter.draw_key = key_of(parameter.name);", "parameter.draw_key = number;",
     "gpt_test_deep"),
    ("deep: a layer's number is its place on the rank", "src/parallel/executor/pipeline_trainer.cpp",
     "call.number = layers_[i].number;", "call.number = i;", "gpt_test_deep"),
    ("deep: W gets the gradients of I, whatever the micro-batch", "src/parallel/executor/gradient_order.hpp",
     "if (micro_batch != (by_pass_ ? pass_ : next_[layer])) {",
     "if (!by_pass_ && micro_batch != next_[layer]) {", "gpt_test_deep"),
    ("deep: micro-batches of a pipeline count whole without leaves",
     "src/parallel/executor/pass.cpp",
     "made.loss_scale = optimizer_->norms().loss_scale().scale() * micro_batch_scale_;",
     "made.loss_scale = optimizer_->norms().loss_scale().scale();", "gpt_test_deep"),
    ("deep: all layouts alike clip to a smaller norm", "src/optimizer/step_norms.cpp",
     "optimizers::clip_factor(norm_, settings_.max_norm) / scale}",
     "optimizers::clip_factor(norm_, 0.9 * settings_.max_norm) / scale}", "gpt_test_deep"),
    ("deep: the example puts a stage's layers where another one's lie", "examples/gpt/layout.cpp",
     "ranges(tensor, layers_of(rank / info_.tensor))", "ranges(tensor, own_)",
     "gpt_test_command"),
]
