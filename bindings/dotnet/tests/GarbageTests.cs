using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Trireme.Tests
{
    /// <summary>Collections of garbage at any moment change nothing.</summary>
    internal static class GarbageTests
    {
        [Test]
        public static void Operations_survive_the_loss_of_everything_but_their_task()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                for (int round = 0; round < 20; ++round)
                {
                    float[] data;
                    Task task = Forgotten(c, out data);
                    Collect();
                    Check.That(task.Wait(Ranks.Patience), "done");
                    Check.That(data.All(value => value == 6f), "the sum is there");
                }
            });
        }

        [Test]
        public static void Callbacks_and_collections_go_together()
        {
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
                    Ranks.RunAndLeaveTogether(3, c =>
                    {
                        for (int round = 0; round < 60; ++round)
                        {
                            var tasks = new List<Task>();
                            var results = new List<int[]>();
                            for (int i = 0; i < 10; ++i)
                            {
                                var data = new int[1 + 100 * i];
                                data[data.Length - 1] = c.Rank;
                                results.Add(data);
                                tasks.Add(c.StartAllReduce<int>(data).AsTask());
                            }

                            Check.That(
                                Task.WaitAll(tasks.ToArray(), Ranks.Patience), "all are done");
                            Check.That(results.All(r => r[r.Length - 1] == 3), "all are right");
                        }
                    });
                }
                finally
                {
                    stop.Set();
                    collector.Join();
                }
            }
        }

        [Test]
        public static void A_rule_that_makes_garbage_runs_in_every_step()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                int calls = 0;
                Optimizer optimizer = null;
                var options = new OptimizerOptions
                {
                    LearningRate = 1,
                    Rule = new UserRule(update =>
                    {
                        ++calls;
                        GC.KeepAlive(optimizer); // a cycle through native code
                        GC.KeepAlive(new byte[10000]);
                        if (calls % 4 == 0)
                        {
                            GC.Collect();
                        }
                    }),
                };
                using (Model model = ModelTests.Sealed(c, Strategy.DataParallel))
                using (optimizer = new Optimizer(model, options))
                {
                    for (int step = 0; step < 20; ++step)
                    {
                        model.AccumulateFlat<float>(ModelTests.Values(step));
                        optimizer.Step();
                    }
                }

                Check.That(calls >= 60, calls + " calls");
            });
        }

        [Test]
        public static void Finalizers_alone_release_everything_in_any_order()
        {
            for (int round = 0; round < 10; ++round)
            {
                WeakReference communicator = Abandoned();
                for (int i = 0; i < 20 && communicator.IsAlive; ++i)
                {
                    Collect();
                }
            }

            // The abandoned communicators have left their groups: a group can still be made.
            Ranks.RunAndLeaveTogether(2, c => c.Barrier());
        }

        [Test]
        public static void An_optimizer_in_a_cycle_with_its_rule_is_collected()
        {
            // Conservative stack scanning may keep one or another alive, but not all.
            var references = new List<WeakReference>();
            for (int i = 0; i < 20; ++i)
            {
                OnItsOwnStack(() => references.Add(Cycle()));
            }

            for (int i = 0; i < 10 && references.All(r => r.IsAlive); ++i)
            {
                Collect();
            }

            Check.That(references.Any(r => !r.IsAlive), "none of 20 was collected");
        }

        [Test]
        public static void Dispose_in_any_order_is_fine()
        {
            for (int order = 0; order < 120; ++order)
            {
                Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous());
                var buffer = new Buffer<float>(c, 10);
                Model model = ModelTests.Sealed(c, Strategy.Zero3);
                var optimizer = new Optimizer(model, ModelTests.Sgd());
                Trainer trainer = Training(model, optimizer);
                var left = new List<IDisposable> { c, buffer, model, optimizer, trainer };
                for (int rest = order, n = 5; n > 0; rest /= n, --n)
                {
                    left[rest % n].Dispose();
                    left.RemoveAt(rest % n);
                }
            }
        }

        [Test]
        public static void Disposing_beside_a_call_neither_hangs_nor_crashes()
        {
            for (int round = 0; round < 20; ++round)
            {
                Ranks.Run(2, c =>
                {
                    c.WaitReady(Ranks.Patience);
                    Task<bool> call = Task.Run(() => Barrier(c));
                    if (c.Rank == 0)
                    {
                        c.Dispose();
                    }

                    // Whichever came first: the barrier is done, or one of two errors.
                    Check.That(call.Wait(Ranks.Patience), "the call ends");
                });
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static Task Forgotten(Communicator communicator, out float[] data)
        {
            data = Enumerable.Repeat(communicator.Rank + 1f, 3000).ToArray();
            return communicator.StartAllReduce<float>(data).AsTask();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static WeakReference Abandoned()
        {
            Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous());
            GC.KeepAlive(new Buffer<double>(c, 1000).Memory);
            Model model = ModelTests.Sealed(c, Strategy.Zero2);
            GC.KeepAlive(Training(model, new Optimizer(model, ModelTests.Sgd())));
            c.StartAllReduce<float>(new float[1000]);
            c.StartReceive<float>(new float[5], 0, 1);
            c.StartSend<float>(new float[5], 0, 1);
            return new WeakReference(c);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static WeakReference Cycle()
        {
            Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous());
            Model model = ModelTests.Sealed(c, Strategy.Zero1);
            Optimizer optimizer = null;
            var options = new OptimizerOptions
            {
                Rule = new UserRule(update => GC.KeepAlive(optimizer)),
            };
            optimizer = new Optimizer(model, options);
            return new WeakReference(optimizer);
        }

        private static Trainer Training(Model model, Optimizer optimizer)
        {
            var layer = new Layer("all", call => { }, call => { })
            {
                ParameterCount = (ulong)model.ParameterTypes.Count(),
            };
            return new Trainer(optimizer, new[] { layer });
        }

        private static bool Barrier(Communicator communicator)
        {
            try
            {
                communicator.Barrier();
                return true;
            }
            catch (PeerLostException)
            {
                return false;
            }
            catch (ObjectDisposedException)
            {
                return false;
            }
        }

        private static void OnItsOwnStack(Action action)
        {
            var thread = new Thread(() => action());
            thread.Start();
            thread.Join();
        }

        private static readonly object Collecting = new object();

        // One thread at a time: Mono's finalizer thread wakes only one of those that wait for it.
        internal static void Collect()
        {
            lock (Collecting)
            {
                GC.Collect();
                GC.WaitForPendingFinalizers();
                GC.Collect();
            }
        }
    }
}
