using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>
    /// Nested options: each reaches its field, its short form is its long form, and the library
    /// keeps no pointer to them.
    /// </summary>
    internal static class OptionsTests
    {
        [Test]
        public static void A_short_form_is_its_long_form()
        {
            Clipping clipping = 2.5;
            Check.Equal(2.5, clipping.MaxNorm);
            Check.Equal(0.0, clipping.MaxValue);
            LossScale scale = 1024;
            Check.Equal(1024.0, scale.InitialScale);
            Check.Equal(0.0, scale.GrowthFactor + scale.BackoffFactor + scale.MinimumScale);
            Check.Equal(0ul, scale.GrowthInterval + scale.Hysteresis);
            LossScale none = 0;
            Check.That(none == null, "0 is no loss scale");
            Offload offload = "/fast";
            Check.Equal("/fast", offload.Path);
            Check.Equal(0.0, offload.Ratio);
            Check.Equal(0ul, offload.BufferBytes);
            string nowhere = null;
            offload = nowhere;
            Check.That(offload == null, "null is no file");
            Check.Throws<ArgumentNullException>(() => new Offload(null));
            Check.Equal(OffloadKind.File, new Offload().Kind, "kind of a place");
            Shards shards = 3;
            Check.Equal(3u, shards.Ranks);
            Check.Equal(0u, shards.Stride);
            Check.Equal(ShareParameters.Auto, shards.Share);
            Check.Throws<ArgumentOutOfRangeException>(() => shards = -1);
        }

        [Test]
        public static void Short_and_long_forms_train_the_same()
        {
            string path = NewFolder();
            Ranks.RunAndLeaveTogether(2, c =>
            {
                var brief = new OptimizerOptions
                {
                    Rule = RuleKind.Adam, Clipping = 0.5, LossScale = 64, Offload = path,
                };
                var whole = new OptimizerOptions
                {
                    Rule = new Adam { Beta1 = 0.9, Beta2 = 0.999, Epsilon = 1e-8 },
                    LearningRate = 0.001,
                    Clipping = new Clipping { MaxNorm = 0.5 },
                    LossScale = new LossScale
                    {
                        InitialScale = 64, GrowthFactor = 2, BackoffFactor = 0.5, MinimumScale = 1,
                        GrowthInterval = 2000, Hysteresis = 1,
                    },
                    Offload = new Offload(path) { Ratio = 1, BufferBytes = 8 << 20 },
                };
                Check.Same(Train(c, brief), Train(c, whole), "options of an optimizer");
                float[] plain = Train(c, new OptimizerOptions { Rule = RuleKind.Adam });
                Check.That(!plain.SequenceEqual(Train(c, brief)), "the norm is clipped");
            });
            Directory.Delete(path); // and nothing in it
        }

        [Test]
        public static void Each_option_of_an_optimizer_is_refused_by_its_own_name()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                var wrong = new Dictionary<string, OptimizerOptions>
                {
                    ["options.clipping.max_norm"] = new OptimizerOptions { Clipping = -1 },
                    ["options.clipping.max_value"] =
                        new OptimizerOptions { Clipping = new Clipping { MaxValue = -1 } },
                    ["options.loss_scale.initial_scale"] = new OptimizerOptions { LossScale = 3 },
                    ["options.loss_scale.growth_factor"] =
                        new OptimizerOptions { LossScale = new LossScale { GrowthFactor = 3 } },
                    ["options.loss_scale.backoff_factor"] =
                        new OptimizerOptions { LossScale = new LossScale { BackoffFactor = 3 } },
                    ["options.loss_scale.minimum_scale"] =
                        new OptimizerOptions { LossScale = new LossScale { MinimumScale = 3 } },
                    ["options.groups[1].max_norm"] = Second(new ParameterGroup { MaxNorm = -1 }),
                    ["options.groups[1].rate_factor"] =
                        Second(new ParameterGroup { RateFactor = -1 }),
                    ["options.groups[1].weight_decay"] =
                        Second(new ParameterGroup { WeightDecay = -1 }),
                    ["options.groups[1].flags"] =
                        Second(new ParameterGroup { Elementwise = true }), // not of Adam
                    ["options.offload.path"] = new OptimizerOptions { Offload = string.Empty },
                    ["options.offload.path is NULL"] =
                        new OptimizerOptions { Offload = new Offload() },
                    ["options.offload.kind"] =
                        new OptimizerOptions { Offload = new Offload("/tmp") { Kind = (OffloadKind)9 } },
                    ["options.offload.ratio"] =
                        new OptimizerOptions { Offload = new Offload("/tmp") { Ratio = 2 } },
                    ["options.offload.buffer_bytes"] =
                        new OptimizerOptions { Offload = new Offload("/tmp") { BufferBytes = 1 } },
                    ["options.learning_rate"] = new OptimizerOptions { LearningRate = -1 },
                    ["options.weight_decay"] = new OptimizerOptions { WeightDecay = -1 },
                };
                foreach (KeyValuePair<string, OptimizerOptions> each in wrong)
                {
                    each.Value.Rule = RuleKind.Adam;
                    Check.Contains(
                        each.Key,
                        Check.Throws<InvalidArgumentException>(
                            () => new Optimizer(model, each.Value)).Message);
                }

                OptimizerOptions hole = Second(null);
                hole.Rule = RuleKind.Sgd;
                Check.Contains(
                    "Groups[1] is null",
                    Check.Throws<ArgumentException>(() => new Optimizer(model, hole)).Message);
                var text = new OptimizerOptions { Rule = RuleKind.Sgd, Offload = "a\0b" };
                Check.Throws<ArgumentException>(() => new Optimizer(model, text));
                new Optimizer(model, ModelTests.Sgd()).Dispose(); // nothing of these stayed
            }
        }

        [Test]
        public static void Every_number_of_a_loss_scale_has_its_effect()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                OptimizerOptions options = ModelTests.Sgd();
                options.LossScale = new LossScale
                {
                    InitialScale = 8, GrowthFactor = 4, BackoffFactor = 0.25, MinimumScale = 2,
                    GrowthInterval = 1, Hysteresis = 2,
                };
                using (var optimizer = new Optimizer(model, options))
                {
                    var scales = new List<double>();
                    foreach (float gradient in new[] { 0, float.NaN, float.NaN, float.NaN, 0 })
                    {
                        model.AccumulateFlat<float>(Enumerable.Repeat(gradient, 20).ToArray());
                        optimizer.Step();
                        scales.Add(optimizer.LossScale);
                    }

                    // It grows at once, backs off at the second overflow and at the third, grows.
                    Check.Same(new double[] { 32, 32, 8, 2, 8 }, scales.ToArray(), "scales");
                }
            }
        }

        [Test]
        public static void A_ratio_and_a_buffer_of_a_file_are_kept_to()
        {
            string path = NewFolder();
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (var model = new Model(c, new ModelOptions { Strategy = Strategy.Zero1 }))
            {
                model.AddParameter(new ParameterOptions("a", ElementType.F32, 200000));
                model.Seal();
                foreach (double ratio in new[] { 0, 0.5 })
                {
                    var options = new OptimizerOptions
                    {
                        Rule = RuleKind.Adam,
                        Offload = new Offload(path) { Ratio = ratio, BufferBytes = 65536 },
                    };
                    using (var optimizer = new Optimizer(model, options))
                    {
                        OffloadInfo info = optimizer.OffloadInfo;
                        Check.That(info.BufferBytes <= 65536, info.BufferBytes + " bytes of buffer");
                        Check.Equal(ratio > 0, info.ResidentBytes > 0, "half stays in memory");
                        Check.That(info.FileBytes >= 800000, info.FileBytes + " bytes in the file");
                    }
                }
            }

            Directory.Delete(path);
        }

        [Test]
        public static void Another_seed_rounds_otherwise()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                string[] found = new ulong[] { 0, 3, 3 }.Select(seed =>
                {
                    using (var model = new Model(c, new ModelOptions { Strategy = Strategy.Zero1 }))
                    {
                        model.AddParameter(new ParameterOptions("a", ElementType.Bf16, 64));
                        model.Seal();
                        var one = Enumerable.Repeat((ushort)0x3f80, 64).ToArray();
                        model.SetParameters<ushort>(one, 0, ElementType.Bf16);
                        var options = new OptimizerOptions
                        {
                            Rule = RuleKind.Sgd, LearningRate = 1.0 / 512, RoundingSeed = seed,
                            Flags = OptimizerFlags.StochasticRounding,
                        };
                        using (var optimizer = new Optimizer(model, options))
                        {
                            model.AccumulateFlat<float>(Enumerable.Repeat(1f, 64).ToArray());
                            optimizer.Step();
                        }

                        model.GetParameters<ushort>(one, ElementType.Bf16);
                        return string.Join(" ", one);
                    }
                }).ToArray();
                Check.Equal(found[1], found[2], "the same seed");
                Check.That(found[0] != found[1], "another seed");
            }
        }

        [Test]
        public static void Each_option_of_a_model_has_its_effect()
        {
            Ranks.RunAndLeaveTogether(4, c =>
            {
                var shared = new ModelOptions { Strategy = Strategy.HybridShard, Shards = 2 };
                var spread = new ModelOptions
                {
                    Strategy = Strategy.HybridShard, Shards = new Shards { Ranks = 2 },
                };
                Check.Equal(
                    Sealed(c, shared, m => m.Memory.PlannedParameters),
                    Sealed(c, spread, m => m.Memory.PlannedParameters), "short and long");
                spread.Shards = null;
                Check.Equal(
                    true,
                    Sealed(c, spread, m => m.Memory.PlannedParameters) <
                    Sealed(c, shared, m => m.Memory.PlannedParameters), "all four ranks by default");
                spread.Shards = new Shards { Ranks = 2, Share = ShareParameters.Never };
                Check.Equal(0ul, Sealed(c, spread, m => m.Info.SharedBytes), "never shared");
                Check.Equal(true, Sealed(c, shared, m => m.Info.SharedBytes) > 0, "shared");

                var buckets = new ModelOptions
                {
                    Strategy = Strategy.Zero2, Units = new Units { MinimumBytes = 1 },
                };
                Check.Equal(1ul, Sealed(c, buckets, m => m.Info.Buckets), "default");
                buckets.Buckets = new Buckets { Bytes = 1 };
                Check.Equal(3ul, Sealed(c, buckets, m => m.Info.Buckets), "of a unit each");
                buckets.Buckets = new Buckets { FirstBytes = 1 };
                Check.Equal(2ul, Sealed(c, buckets, m => m.Info.Buckets), "a first one");

                var never = new Shards { Share = ShareParameters.Never };
                var units = new ModelOptions { Strategy = Strategy.Zero3, Shards = never };
                Check.Equal(1ul, Sealed(c, units, m => m.Info.UnitGroups), "joined");
                ulong joined = Sealed(c, units, m => m.Memory.PlannedWorking);
                units.Units = new Units { MinimumBytes = 1 };
                Check.Equal(3ul, Sealed(c, units, m => m.Info.UnitGroups), "a group each");
                ulong least = Sealed(c, units, m => m.Memory.PlannedWorking);
                units.Units.PrefetchBytes = 1 << 20;
                ulong more = Sealed(c, units, m => m.Memory.PlannedWorking);
                Check.Equal(true, more > least, "prefetched: " + least + " " + more + " " + joined);
                units.Units = new Units { PersistentBytes = 1 << 20 };
                ulong persistent = 4 * 3000;
                Check.Equal(
                    true, Sealed(c, units, m => m.Memory.PlannedParameters) >= persistent, "whole");

                foreach (KeyValuePair<string, ModelOptions> each in
                    new Dictionary<string, ModelOptions>
                    {
                        ["options.shards.ranks"] =
                            new ModelOptions { Strategy = Strategy.HybridShard, Shards = 3 },
                        ["options.shards.stride"] = new ModelOptions
                        {
                            Strategy = Strategy.Zero3, Shards = new Shards { Stride = 2 },
                        },
                        ["options.shards.share"] = new ModelOptions
                        {
                            Strategy = Strategy.Zero3,
                            Shards = new Shards { Share = (ShareParameters)9 },
                        },
                        ["options.units.reshard_ranks"] = new ModelOptions
                        {
                            Strategy = Strategy.Zero3, Units = new Units { ReshardRanks = 3 },
                        },
                        ["options.offload.path"] =
                            new ModelOptions { Strategy = Strategy.Zero3, Offload = string.Empty },
                    })
                {
                    Check.Contains(
                        each.Key,
                        Check.Throws<InvalidArgumentException>(
                            () => new Model(c, each.Value)).Message);
                }
            });
        }

        [Test]
        public static void The_library_copies_nested_options_while_garbage_is_collected()
        {
            string path = NewFolder();
            using (var stop = new ManualResetEventSlim())
            {
                var collector = new Thread(() =>
                {
                    while (!stop.IsSet)
                    {
                        GC.Collect();
                        Thread.Sleep(1);
                    }
                });
                collector.Start();
                try
                {
                    Ranks.RunAndLeaveTogether(2, c =>
                    {
                        for (int round = 0; round < 20; ++round) TrainNested(c, path);
                    });
                }
                finally
                {
                    stop.Set();
                    collector.Join();
                }
            }

            Directory.Delete(path);
        }

        [Test]
        public static void Memory_of_a_call_is_given_back_when_it_fails()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Model model = ModelTests.Sealed(c, Strategy.Zero1))
            {
                var groups = Enumerable.Range(0, 1024)
                    .Select(i => new ParameterGroup { RateFactor = 1, WeightDecay = 1 }).ToArray();
                var options = new OptimizerOptions
                {
                    Rule = new AdamW { Beta1 = 2 }, Groups = groups, Clipping = 1, LossScale = 1,
                };
                Action fail = () =>
                    Check.Throws<InvalidArgumentException>(() => new Optimizer(model, options));
                for (int i = 0; i < 100; ++i) fail();
                long before = Resident();
                for (int i = 0; i < 1500; ++i) fail(); // about 100 KB each, were it to stay

                // A group that is null is found when half of the memory is there.
                groups[1023] = null;
                for (int i = 0; i < 500; ++i)
                {
                    Check.Throws<ArgumentException>(() => new Optimizer(model, options));
                }

                GC.Collect();
                long grown = Resident() - before;
                Check.That(grown < 64 << 20, grown + " bytes more");
            }
        }

        // One step with every pointer set, and with what they pointed to overwritten.
        private static void TrainNested(Communicator c, string path)
        {
            var modelOptions = new ModelOptions
            {
                Strategy = Strategy.HybridShard,
                Gradients = Gradients.Sum,
                Buckets = new Buckets { Bytes = 1, Hook = bucket => GC.KeepAlive(new byte[100]) },
                Units = new Units { MinimumBytes = 1 },
                Shards = new Shards { Ranks = 2 },
                Offload = path,
            };
            using (var model = new Model(c, modelOptions))
            {
                model.AddParameter(new ParameterOptions("a", ElementType.F32, 4));
                model.AddParameter(
                    new ParameterOptions("b", ElementType.F32, 4) { ParameterGroup = 1 });
                Spoil();
                model.Seal();
                var options = new OptimizerOptions
                {
                    Rule = new Sgd { Momentum = 0.5, Nesterov = true },
                    LearningRate = 0.5,
                    WeightDecay = 0.25,
                    Clipping = new Clipping { MaxValue = 100 },
                    Groups = new[]
                    {
                        new ParameterGroup(),
                        new ParameterGroup { RateFactor = 0.5, WeightDecay = 0 },
                    },
                    LossScale = new LossScale { InitialScale = 4 },
                    Offload = path,
                    NormRanks = c,
                };
                options.Clipping.MaxNorm = 1000; // NormRanks is for norms
                using (var optimizer = new Optimizer(model, options))
                {
                    Spoil();
                    options.Groups[1].RateFactor = 77; // too late
                    model.SetParameters<float>(new float[] { 4, 4, 4, 4, 4, 4, 4, 4 });
                    model.AccumulateFlat<float>(Enumerable.Repeat(4f, 8).ToArray());
                    optimizer.Step();
                    var values = new float[8];
                    model.GetParameters<float>(values);

                    // Two ranks: g = 2, and 3 with decay; Nesterov makes it 1.5 g at first.
                    Check.Same(
                        new[] { 1.75f, 1.75f, 1.75f, 1.75f, 3.25f, 3.25f, 3.25f, 3.25f }, values,
                        "one step");
                }
            }
        }

        // Takes memory that was freed, and writes to it.
        private static void Spoil()
        {
            var taken = new List<IntPtr>();
            foreach (int bytes in new[] { 8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 128 })
            {
                for (int i = 0; i < 20; ++i)
                {
                    IntPtr memory = Marshal.AllocHGlobal(bytes);
                    for (int at = 0; at < bytes; ++at) Marshal.WriteByte(memory, at, 0xff);
                    taken.Add(memory);
                }
            }

            foreach (IntPtr memory in taken) Marshal.FreeHGlobal(memory);
        }

        private static OptimizerOptions Second(ParameterGroup group)
        {
            return new OptimizerOptions { Groups = new[] { new ParameterGroup(), group } };
        }

        private static float[] Train(Communicator c, OptimizerOptions options)
        {
            using (Model model = ModelTests.Sealed(c, Strategy.Zero2))
            using (var optimizer = new Optimizer(model, options))
            {
                for (int step = 0; step < 3; ++step)
                {
                    float scale = (float)optimizer.LossScale;
                    model.AccumulateFlat<float>(
                        ModelTests.Values(c.Rank + step).Select(v => v * scale).ToArray());
                    optimizer.Step();
                }

                var values = new float[20];
                model.GetParameters<float>(values);
                return values;
            }
        }

        // Three units of 1,000 elements.
        private static T Sealed<T>(Communicator c, ModelOptions options, Func<Model, T> read)
        {
            using (var model = new Model(c, options))
            {
                for (int i = 0; i < 3; ++i)
                {
                    model.AddParameter(new ParameterOptions("p" + i, ElementType.F32, 1000));
                }

                model.Seal();
                T found = read(model);
                c.Barrier();
                return found;
            }
        }

        private static long Resident()
        {
            using (Process self = Process.GetCurrentProcess())
            {
                return self.WorkingSet64;
            }
        }

        private static string NewFolder()
        {
            string path = Path.Combine(Path.GetTempPath(), "trireme-" + Guid.NewGuid());
            Directory.CreateDirectory(path);
            return path;
        }
    }
}
