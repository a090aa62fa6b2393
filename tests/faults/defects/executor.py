"""Training with a pipeline."""

PLAN = "src/parallel/executor/plan.cpp"
PASS = "src/parallel/executor/pass.cpp"
LINKS = "src/parallel/executor/links.cpp"
TRAINER = "src/parallel/executor/pipeline_trainer.cpp"

DEFECTS = [
    ("executor: activations are given back before W", PLAN,
     "if (all || !plan_.stages[plan_.local[s]].split) give_back(s, m);", "give_back(s, m);",
     "api_test_pipeline_trainer"),
    ("executor: two micro-batches share the gradients of their outputs", PLAN,
     "plan_.places[at].gradients = slots_.take(layout(at).gradient_bytes);",
     "plan_.places[at].gradients = 0;", "api_test_pipeline_trainer"),
    ("executor: gradients add up as they come", "src/parallel/executor/gradient_order.hpp",
     "if (micro_batch != (by_pass_ ? pass_ : next_[layer])) {", "if (by_pass_ && micro_batch != pass_) {",
     "api_test_pipeline_trainer"),
    ("executor: W runs with I, before its turn", PASS,
     "const bool for_weights = split ? kind != TRIREME_PIPELINE_KIND_I : for_input;",
     "const bool for_weights = for_input;", "api_test_pipeline_trainer"),
    ("executor: the loss is scaled twice", TRAINER,
     ": 1.0 / schedule_.micro_batches),",
     ": 1.0 / schedule_.micro_batches / schedule_.micro_batches),", "api_test_pipeline_trainer"),
    ("executor: the message of another micro-batch is taken", PASS,
     "const Cell to = places_.cell(action.stage, action.micro_batch);",
     "const Cell to = places_.cell(action.stage, action.micro_batch / 2 * 2);", "api_test_pipeline_trainer"),
    ("executor: seeds count the layers of one rank", TRAINER,
     "call.number = layers_[i].number;", "call.number = i;", "api_test_pipeline_trainer"),
    ("executor: a failed rank sends data as if all were well", PASS,
     "{!computes(from), !forward && gaps_.has_gap(),", "{false, !forward && gaps_.has_gap(),",
     "api_test_pipeline_failures"),
    ("executor: the stage before does not hear of a gap", PASS,
     "{!computes(from), !forward && gaps_.has_gap(),", "{!computes(from), false,",
     "api_test_pipeline_failures"),
    ("executor: gradients have no loss scale", PASS,
     "made.loss_scale = optimizer_->norms().loss_scale().scale() * micro_batch_scale_;",
     "made.loss_scale = micro_batch_scale_;", "api_test_pipeline_trainer"),
    ("executor: a gradient that is sent late is overwritten", PLAN,
     "if (!sends_gradients_at_once(schedule)) return schedule.micro_batches;", "",
     "api_test_pipeline_trainer"),
    ("executor: a pair is checked without its messages", TRAINER,
     "pipeline::check(schedule_, {}, nullptr)", "pipeline::check(options_.schedule, {}, nullptr)",
     "api_test_pipeline_failures"),
    ("executor: headers are not compared", LINKS,
     "if (instead == nullptr && header == wanted)", "if (instead == nullptr)",
     "api_test_pipeline_failures"),
]
