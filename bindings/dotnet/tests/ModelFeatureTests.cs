using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.CompilerServices;

namespace Trireme.Tests
{
    /// <summary>
    /// Features of models: hybrid shards, groups, uneven inputs, unused gradients, hooks.
    /// </summary>
    internal static class ModelFeatureTests
    {
        // As ModelTests.Sealed() describes it: where each parameter begins, and the end.
        private static readonly int[] Firsts = { 0, 12, 15, 20 };

        [Test]
        public static void Hybrid_shards_hold_parameters_once_a_shard_and_state_once()
        {
            const ulong Elements = 20;
            foreach (int world in new[] { 2, 4 })
            {
                var held = new ulong[world];
                var state = new ulong[world];
                Ranks.RunAndLeaveTogether(world, c =>
                {
                    var adam = new OptimizerOptions { Rule = RuleKind.Adam };
                    using (Model model = ModelTests.Sealed(c, Strategy.HybridShard))
                    using (new Optimizer(model, adam))
                    {
                        held[c.Rank] = model.Memory.AllocatedParameters;
                        state[c.Rank] = model.Memory.AllocatedOptimizerState;
                    }
                });
                Check.Equal(4 * Elements * (ulong)world / 2, Sum(held), "parameters");
                Check.Equal(2 * 4 * Elements, Sum(state), "state");
            }
        }

        [Test]
        public static void Shard_ranks_0_takes_the_ranks_of_the_host()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var planned = new List<ulong>();
                foreach (int shardRanks in new[] { 0, 3 })
                {
                    using (var model = new Model(
                        c, new ModelOptions { Strategy = Strategy.HybridShard, Shards = shardRanks }))
                    {
                        model.AddParameter(new ParameterOptions("weight", ElementType.F32, 12, 5));
                        model.Seal();
                        planned.Add(model.Memory.PlannedParameters);
                    }
                }

                Check.Equal(planned[1], planned[0], "planned bytes of parameters");
            });
        }

        [Test]
        public static void Options_that_do_not_fit_are_refused()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                foreach (ModelOptions options in new[]
                {
                    new ModelOptions { Strategy = Strategy.HybridShard, Shards = 2 },
                    new ModelOptions { Strategy = Strategy.Zero3, Shards = 3 },
                    new ModelOptions { Strategy = Strategy.Zero3, Unused = (Unused)3 },
                    new ModelOptions { Strategy = Strategy.Zero3, Flags = (ModelFlags)1024 },
                    new ModelOptions { Strategy = Strategy.Zero3, Shards = new Shards { Stride = 2 } },
                    new ModelOptions { Strategy = Strategy.Zero1, ReduceType = ElementType.F32 },
                    new ModelOptions { Strategy = Strategy.Zero2, Flags = ModelFlags.KeepGathered },
                })
                {
                    Check.Throws<InvalidArgumentException>(() => new Model(c, options));
                }

                using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
                {
                    OptimizerOptions bad = ModelTests.Sgd();
                    bad.Clipping = new Clipping { MaxValue = -1 };
                    Check.Throws<InvalidArgumentException>(() => new Optimizer(model, bad));
                }
            });
        }

        [Test]
        public static void Contributions_travel_rounded_and_sums_stay_wide()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.Zero2,
                    Gradients = Gradients.Sum,
                    ReduceType = ElementType.Bf16,
                };
                using (var model = new Model(c, options))
                {
                    Check.Throws<UnsupportedException>(() => model.AddParameter(
                        new ParameterOptions("wide", ElementType.F64, 2)));
                    model.AddParameter(new ParameterOptions("weight", ElementType.F32, 3));
                    model.Seal();
                    var sgd = new OptimizerOptions { Rule = RuleKind.Sgd, LearningRate = 1 };
                    using (var optimizer = new Optimizer(model, sgd))
                    {
                        float small = 1f / 512;
                        float own = c.Rank == 0 ? 1 + small : small;
                        model.SetParameters<float>(new float[3]);
                        model.AccumulateFlat<float>(new[] { own, own, own });
                        optimizer.Step();
                    }

                    var values = new float[3];
                    model.GetParameters<float>(values);
                    foreach (float value in values) Check.Equal(-1 - (1f / 512), value, "value");
                }
            });
        }

        [Test]
        public static void Small_units_are_joined_and_persistent_ones_need_no_gather()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var joined = new ModelOptions
                {
                    Strategy = Strategy.Zero3, Units = new Units { MinimumBytes = 1 << 20 },
                };
                using (Model model = ModelTests.Sealed(c, joined))
                {
                    Check.Equal(1ul, model.Info.UnitGroups);
                    Check.Equal(0ul, model.GetUnit(1).UnitGroup);
                }

                var whole = new ModelOptions
                {
                    Strategy = Strategy.Zero3, Units = new Units { PersistentBytes = 21 },
                };
                using (Model model = ModelTests.Sealed(c, whole))
                {
                    model.SetParameters<float>(ModelTests.Values(0));
                    Check.Same(
                        ModelTests.Values(0).Skip(15).ToArray(),
                        model.GetParameterData<float>(2).ToArray(), "the persistent unit");
                    Check.Throws<InvalidStateException>(
                        () => model.GetParameterData<float>(0).ToArray());
                    model.GatherUnit(1);
                    model.ReleaseUnit(1);
                    Check.Equal(0ul, model.Statistics.Gathers);
                }

                var early = new ModelOptions { Strategy = Strategy.Zero2, Buckets = new Buckets { FirstBytes = 1 } };
                using (Model model = ModelTests.Sealed(c, early))
                using (Model plain = ModelTests.Sealed(c, Strategy.Zero2))
                {
                    Check.Equal(1ul, plain.Info.Buckets);
                    Check.Equal(2ul, model.Info.Buckets);
                }
            });
        }

        [Test]
        public static void Statistics_count_what_was_done()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.Zero3, Units = new Units { MinimumBytes = 1 },
                    Buckets = new Buckets { Bytes = 1 },
                    Shards = new Shards { Share = ShareParameters.Never }, // gathers are real
                };
                using (var model = new Model(c, options))
                {
                    Check.Throws<InvalidStateException>(() => model.Statistics.ToString());
                    Check.Throws<InvalidStateException>(() => model.CheckReplicas());
                    // A model on the host has no stream.
                    Check.Throws<InvalidStateException>(() => model.SetStream(IntPtr.Zero));
                    Check.Throws<InvalidStateException>(() => model.SetStream(new IntPtr(7)));
                    for (int i = 0; i < 4; ++i)
                    {
                        model.AddParameter(new ParameterOptions("p" + i, ElementType.F32, 6));
                    }

                    model.Seal();
                    using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                    {
                        var seen = new List<ModelStatistics>();
                        for (ulong step = 1; step <= 2; ++step)
                        {
                            foreach (ulong unit in new ulong[] { 0, 1, 2, 3, 3, 2, 1, 0 })
                            {
                                model.GatherUnit(unit);
                                model.ReleaseUnit(unit);
                            }

                            model.AccumulateFlat<float>(new float[24]);
                            optimizer.Step();
                            seen.Add(model.Statistics);
                            Check.Equal(step, model.Statistics.Steps);
                            Check.Equal(
                                step * model.Info.Buckets, model.Statistics.Reductions);
                        }

                        Check.That(seen[1].Prefetched > seen[0].Prefetched, "prefetched");
                        Check.That(seen[1].Prefetched <= seen[1].Gathers, "gathers");
                        Check.That(seen[1].PeakUnitGroups <= 4, "groups in flight");
                        Check.That(seen[1].Exposed > TimeSpan.Zero, "exposed time");
                    }

                    model.Dispose();
                    Check.Throws<ObjectDisposedException>(() => model.Statistics.ToString());
                    Check.Throws<ObjectDisposedException>(() => model.CheckReplicas());
                }
            });
        }

        [Test]
        public static void The_rank_whose_copy_differs_is_named_on_all()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                foreach (Strategy strategy in new[] { Strategy.DataParallel, Strategy.Zero2 })
                {
                    using (Model model = ModelTests.Sealed(c, strategy))
                    {
                        model.SetParameters<float>(ModelTests.Values(0));
                        model.CheckReplicas();
                        if (c.Rank == 1)
                        {
                            Span<float> head = model.GetParameterData<float>(2);
                            head[4] += 1;
                        }

                        var failure = Check.Throws<MismatchException>(() => model.CheckReplicas());
                        Check.Contains("head", failure.Message);
                        Check.Same(new[] { 1 }, failure.BlamedRanks, "blamed");
                        model.SetParameters<float>(ModelTests.Values(0));
                        model.CheckReplicas();
                    }
                }

                OptimizerOptions options = ModelTests.Sgd();
                options.CheckEvery = 2;
                using (Model model = ModelTests.Sealed(c, Strategy.DataParallel))
                using (var optimizer = new Optimizer(model, options))
                {
                    if (c.Rank == 2)
                    {
                        Span<float> weight = model.GetParameterData<float>(0);
                        weight[0] = 77;
                    }

                    model.AccumulateFlat<float>(ModelTests.Values(0));
                    Check.Throws<InvalidStateException>(() => model.CheckReplicas());
                    optimizer.Step();
                    model.AccumulateFlat<float>(ModelTests.Values(0));
                    var failure = Check.Throws<MismatchException>(() => optimizer.Step());
                    Check.Same(new[] { 2 }, failure.BlamedRanks, "blamed");
                }
            });
        }

        [Test]
        public static void Unused_gradients_are_an_error_or_zero_or_skipped()
        {
            foreach (Unused unused in new[] { Unused.Error, Unused.Zero, Unused.Skip })
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    var options = new ModelOptions
                    {
                        Strategy = Strategy.Zero2, Gradients = Gradients.Sum, Unused = unused,
                    };
                    OptimizerOptions rule = ModelTests.Sgd();
                    rule.WeightDecay = 0.25;
                    using (Model model = ModelTests.Sealed(c, options))
                    using (var optimizer = new Optimizer(model, rule))
                    {
                        float[] start = ModelTests.Values(0);
                        model.SetParameters<float>(start);
                        // No rank has a gradient of the bias, and only rank 1 of the head.
                        model.BeginBackward();
                        if (c.Rank == 1)
                        {
                            model.GradientReady<float>(2, Filled(5, 4));
                        }

                        model.GradientReady<float>(0, Filled(12, 2));
                        if (unused == Unused.Error)
                        {
                            var failure =
                                Check.Throws<InvalidStateException>(() => model.EndBackward());
                            Check.Contains("bias", failure.Message);
                            return;
                        }

                        model.EndBackward();
                        optimizer.Step();
                        float[] wanted = start.Select((value, i) =>
                        {
                            bool skipped = unused == Unused.Skip && i >= 12 && i < 15;
                            float sum = i < 15 ? (i < 12 ? 4 : 0) : 4;
                            return skipped ? value : value - 0.5f * (sum + 0.25f * value);
                        }).ToArray();
                        Check.Same(wanted, Parameters(model), unused.ToString());
                    }
                });
            }
        }

        [Test]
        public static void Ranks_that_run_out_of_data_join()
        {
            ulong[] batches = { 3, 1, 2 };
            foreach (Strategy strategy in ModelTests.Strategies)
            {
                Ranks.RunAndLeaveTogether(3, c =>
                {
                    var options = new ModelOptions
                    {
                        Strategy = strategy, Flags = ModelFlags.Uneven,
                    };
                    using (Model model = ModelTests.Sealed(c, options))
                    using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                    {
                        for (ulong i = 0; i < batches[c.Rank]; ++i)
                        {
                            model.AccumulateFlat<float>(Filled(20, 2 * c.Rank));
                            optimizer.Step();
                        }

                        Check.Equal(3 - batches[c.Rank], optimizer.Join());
                        Check.Equal(3ul, optimizer.StepCount);

                        // The averages of all, of ranks 0 and 2, and of rank 0.
                        Check.Same(
                            Filled(20, -0.5f * (2 + 2 + 0)), Parameters(model),
                            strategy.ToString());
                    }
                });
            }
        }

        [Test]
        public static void Absent_ranks_do_not_count()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.Zero3, Flags = ModelFlags.Uneven,
                };
                using (Model model = ModelTests.Sealed(c, options))
                using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                {
                    if (c.Rank == 1)
                    {
                        model.AbsentBackward(BackwardFlags.NoSync);
                        model.BeginBackward(BackwardFlags.Absent);
                        Check.Throws<InvalidStateException>(
                            () => model.GradientReady<float>(1, new float[3]));
                        model.EndBackward();
                    }
                    else
                    {
                        model.AccumulateFlat<float>(Filled(20, 1), BackwardFlags.NoSync);
                        model.AccumulateFlat<float>(Filled(20, c.Rank));
                    }

                    Check.Throws<InvalidStateException>(() => optimizer.Join());
                    optimizer.Step();
                    Check.Equal(0ul, optimizer.Join());
                    Check.Same(Filled(20, -0.5f * (1 + 3) / 2), Parameters(model), "averaged");
                }
            });
        }

        [Test]
        public static void A_model_that_is_not_uneven_knows_neither_absence_nor_joining()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                var optimizer = new Optimizer(model, ModelTests.Sgd());
                Check.Throws<UnsupportedException>(() => model.AbsentBackward());
                Check.Throws<InvalidStateException>(() => optimizer.Join());
                optimizer.Dispose();
                Check.Throws<ObjectDisposedException>(() => optimizer.Join());
            }
        }

        [Test]
        public static void Values_are_clipped_on_both_sides()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                OptimizerOptions options = ModelTests.Sgd();
                options.Clipping = new Clipping { MaxValue = 1.5 };
                using (Model model = ModelTests.Sealed(c, Strategy.Zero3))
                using (var optimizer = new Optimizer(model, options))
                {
                    float[] gradients = Enumerable.Range(0, 20).Select(i => i - 10f).ToArray();
                    model.AccumulateFlat<float>(gradients);
                    optimizer.Step();
                    Check.Same(
                        gradients.Select(g => -0.5f * Math.Max(-1.5f, Math.Min(1.5f, g))).ToArray(),
                        Parameters(model), "clipped");
                }
            });
        }

        [Test]
        public static void One_sweep_has_the_bits_of_separate_passes()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var found = new List<float[]>();
                foreach (OptimizerFlags flags in new[] { OptimizerFlags.None, OptimizerFlags.OneSweep })
                {
                    OptimizerOptions options = ModelTests.Sgd();
                    options.Flags = flags;
                    using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
                    using (var optimizer = new Optimizer(model, options))
                    {
                        for (int step = 0; step < 3; ++step)
                        {
                            model.AccumulateFlat<float>(Enumerable.Range(0, 20)
                                .Select(i => (i * 7 + c.Rank * 3 + step) * 0.3f - 4).ToArray());
                            optimizer.Step();
                        }
                        found.Add(Parameters(model));
                    }

                    if (flags == OptimizerFlags.None) continue;
                    using (Model other = ModelTests.Sealed(c, Strategy.Zero2))
                    {
                        Check.Throws<UnsupportedException>(() => new Optimizer(other, options));
                    }
                }

                Check.Same(found[0], found[1], "one sweep");
            });
        }

        [Test]
        public static void A_hook_changes_gradients_before_and_after()
        {
            foreach (int world in Ranks.Worlds)
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    var before = new int[20];
                    var after = new int[20];
                    Ranks.RunAndLeaveTogether(world, c =>
                    {
                        BucketHook hook = bucket =>
                        {
                            Check.Equal(0u, bucket.Pass);
                            Check.Equal(ElementType.F32, bucket.Type);
                            bool early = bucket.Moment == HookMoment.Before;
                            Tell(bucket, early ? before : after);
                            Span<float> data = bucket.Data<float>();
                            for (int i = 0; i < data.Length; ++i)
                            {
                                data[i] = early ? 2 * data[i] : data[i] + 1;
                            }
                        };
                        var options = new ModelOptions
                        {
                            Strategy = strategy, Gradients = Gradients.Sum,
                            Buckets = new Buckets { Bytes = 1, Hook = hook },
                        };
                        using (Model model = ModelTests.Sealed(c, options))
                        using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                        {
                            model.AccumulateFlat<float>(ModelTests.Values(c.Rank));
                            optimizer.Step();
                            float[] wanted = Enumerable.Range(0, 20).Select(i => -0.5f * (1 + 2 *
                                Enumerable.Range(0, world).Sum(r => ModelTests.Values(r)[i])))
                                .ToArray();
                            Check.Same(wanted, Parameters(model), strategy + " on " + world);
                        }
                    });
                    Check.Same(Enumerable.Repeat(world, 20).ToArray(), before, "before");
                    int copies = strategy == Strategy.DataParallel ? world : 1;
                    Check.Same(Enumerable.Repeat(copies, 20).ToArray(), after, "after");
                }
            }
        }

        [Test]
        public static void What_a_hook_throws_is_thrown_from_step_and_the_others_hear_of_it()
        {
            foreach (HookMoment moment in new[] { HookMoment.Before, HookMoment.After })
            {
                foreach (Strategy strategy in ModelTests.Strategies)
                {
                    Ranks.RunAndLeaveTogether(3, c =>
                    {
                        var options = new ModelOptions
                        {
                            Strategy = strategy,
                            Buckets = new Buckets
                            {
                                Hook = bucket =>
                                {
                                    if (c.Rank == 1 && bucket.Moment == moment)
                                    {
                                        throw new TimeZoneNotFoundException("mine");
                                    }
                                },
                            },
                        };
                        using (Model model = ModelTests.Sealed(c, options))
                        using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                        {
                            model.AccumulateFlat<float>(ModelTests.Values(0));
                            if (c.Rank == 1)
                            {
                                var mine = Check.Throws<TimeZoneNotFoundException>(
                                    () => optimizer.Step());
                                Check.Equal("mine", mine.Message);
                            }
                            else
                            {
                                var failure =
                                    Check.Throws<CallbackException>(() => optimizer.Step());
                                Check.Contains("rank 1", failure.Message);
                            }
                        }
                    });
                }
            }
        }

        [Test]
        public static void What_a_hook_threw_goes_with_the_gradients()
        {
            bool bad = true;
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                var options = new ModelOptions
                {
                    Strategy = Strategy.Zero2,
                    Buckets = new Buckets
                    {
                        Hook = bucket =>
                        {
                            if (bad)
                            {
                                bucket.Data<double>(); // they are floats
                            }
                        },
                    },
                };
                using (Model model = ModelTests.Sealed(c, options))
                using (var optimizer = new Optimizer(model, ModelTests.Sgd()))
                {
                    model.AccumulateFlat<float>(Filled(20, 1));
                    model.DiscardGradients();
                    bad = false;
                    model.AccumulateFlat<float>(Filled(20, 1));
                    optimizer.Step();
                    Check.Same(Filled(20, -0.5f), Parameters(model), "after a step");
                    bad = true;
                    model.AccumulateFlat<float>(Filled(20, 1));
                    Check.Throws<ArgumentException>(() => optimizer.Step());
                }
            }
        }

        [Test]
        public static void A_hook_lives_with_the_optimizer_and_not_longer()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                // Conservative stack scanning may keep one or another alive, but not all.
                var counters = new List<WeakReference>();
                for (int i = 0; i < 20; ++i)
                {
                    Ranks.OnThreads(1, thread => counters.Add(TrainAndForget(c)));
                }

                for (int i = 0; i < 10 && counters.All(counter => counter.IsAlive); ++i)
                {
                    GC.Collect();
                    GC.WaitForPendingFinalizers();
                }

                Check.That(counters.Any(counter => !counter.IsAlive), "none of 20 was collected");
            }
        }

        [Test]
        public static void Ranks_with_and_without_a_hook_are_told()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var options = new ModelOptions { Strategy = Strategy.Zero2 };
                if (c.Rank == 0)
                {
                    options.Buckets = new Buckets { Hook = bucket => { } };
                }

                var failure = Check.Throws<MismatchException>(
                    () => ModelTests.Sealed(c, options));
                Check.Contains("options.buckets.hook", failure.Message);
            });
        }

        private sealed class Counter
        {
            public int Calls { get; set; }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static WeakReference TrainAndForget(Communicator c)
        {
            var counter = new Counter();
            var options = new ModelOptions
            {
                Strategy = Strategy.Zero3, Buckets = new Buckets { Hook = bucket => counter.Calls += 1 },
            };
            Model model = ModelTests.Sealed(c, options);
            var optimizer = new Optimizer(model, ModelTests.Sgd());
            options.Buckets.Hook = null;
            model.AccumulateFlat<float>(Filled(20, 1));
            model.Dispose();
            GC.Collect();
            GC.WaitForPendingFinalizers();
            optimizer.Step();
            Check.That(counter.Calls >= 2, "the hook ran without its model");
            optimizer.Dispose();
            return new WeakReference(counter);
        }

        // How often each element was shown.
        private static void Tell(Bucket bucket, int[] counts)
        {
            int position = 0;
            for (int i = 0; i < bucket.PartCount; ++i)
            {
                BucketPart part = bucket.Part(i);
                Check.Equal(position, part.Position, "position");
                position += part.Count;
                lock (counts)
                {
                    for (int e = 0; e < part.Count; ++e)
                    {
                        ++counts[Firsts[part.Parameter] + (int)part.First + e];
                    }
                }
            }

            Check.Equal(position, bucket.Count, "elements");
            try
            {
                bucket.Part(bucket.PartCount);
            }
            catch (ArgumentOutOfRangeException)
            {
                return;
            }

            throw new FailureException("a part too many");
        }

        private static float[] Filled(int count, float value)
        {
            return Enumerable.Repeat(value, count).ToArray();
        }

        private static ulong Sum(ulong[] values)
        {
            return values.Aggregate((a, b) => a + b);
        }

        private static float[] Parameters(Model model)
        {
            var values = new float[model.Info.Elements];
            model.GetParameters<float>(values);
            return values;
        }
    }
}
