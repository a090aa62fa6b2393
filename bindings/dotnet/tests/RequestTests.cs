using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

namespace Trireme.Tests
{
    /// <summary>Started operations: waiting, awaiting, cancelling, forgetting.</summary>
    internal static class RequestTests
    {
        private static readonly TimeSpan Moment = TimeSpan.FromMilliseconds(10);

        [Test]
        public static void A_request_can_be_awaited()
        {
            Ranks.RunAndLeaveTogether(3, c => Check.That(
                Awaited(c).Wait(Ranks.Patience), "the awaited sum arrives"));
        }

        [Test]
        public static void A_failed_operation_fails_its_task_with_the_same_exception()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                Task task = c.StartAllReduce<float>(new float[c.Rank + 1]).AsTask();
                var failure = Check.Throws<AggregateException>(
                    () => task.Wait(Ranks.Patience));
                var inner = (MismatchException)failure.InnerException;
                Check.Equal("all_reduce", inner.Operation);
                Check.That(task.IsFaulted, "faulted");
            });
        }

        [Test]
        public static void Waiting_too_short_leaves_the_operation_running()
        {
            using (var go = new ManualResetEventSlim())
            {
                Ranks.RunAndLeaveTogether(2, c =>
                {
                    var data = new[] { c.Rank + 1 };
                    if (c.Rank == 1)
                    {
                        Check.That(go.Wait(Ranks.Patience), "rank 0 lets go");
                        c.AllReduce<int>(data);
                        return;
                    }

                    using (Request request = c.StartAllReduce<int>(data))
                    {
                        Check.That(!request.Test(), "still running");
                        Check.That(!request.Wait(Moment), "too short");
                        Check.That(!request.Wait(TimeSpan.Zero), "not at all");
                        Check.Equal(-1, Request.WaitAny(Moment, request));
                        go.Set();
                        Check.That(request.Wait(Ranks.Patience), "done");
                        Check.That(request.Test(), "done");
                        request.Wait();
                        Check.Equal(3, data[0]);
                        Check.That(!request.Cancel(), "too late to cancel");
                    }
                });
            }
        }

        [Test]
        public static void An_operation_that_runs_out_of_time_throws_from_wait_and_test()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                if (c.Rank == 1)
                {
                    return;
                }

                var options = new OperationOptions { Timeout = TimeSpan.FromMilliseconds(100) };
                using (Request request = c.StartReceive<int>(new int[1], 1, 7, options))
                {
                    var failure = Check.Throws<TriremeTimeoutException>(
                        () => request.Wait(Ranks.Patience));
                    Check.Same(new[] { 1 }, failure.BlamedRanks, "blamed");
                    Check.Throws<TriremeTimeoutException>(() => request.Test());
                    Check.Throws<TriremeTimeoutException>(() => request.Wait());
                }
            });
        }

        [Test]
        public static void A_receive_nobody_answers_can_be_cancelled()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (Request request = c.StartReceive<int>(new int[1], 1 - c.Rank, 5))
                {
                    Task task = request.AsTask();
                    Check.That(request.Cancel(), "withdrawn");
                    Check.Throws<AggregateException>(() => task.Wait(Ranks.Patience));
                    Check.That(task.IsCanceled, "the task is cancelled");
                    Check.Throws<CancelledException>(() => request.Test());
                    Check.That(!request.Cancel(), "only once");
                }

                c.Barrier(); // a withdrawn message does no harm
            });
        }

        [Test]
        public static void A_token_cancels_what_has_not_begun()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                using (var source = new CancellationTokenSource())
                using (Request request = c.StartReceive<int>(new int[1], 1 - c.Rank, 5))
                {
                    Task task = request.AsTask(source.Token);
                    source.Cancel();
                    Check.Throws<AggregateException>(() => task.Wait(Ranks.Patience));
                    Check.That(task.IsCanceled, "the task is cancelled");
                }

                using (var source = new CancellationTokenSource())
                {
                    Task task = c.StartBarrier().AsTask(source.Token);
                    Check.That(task.Wait(Ranks.Patience), "a barrier ends");
                    source.Cancel(); // late, and without effect
                    Check.That(task.Status == TaskStatus.RanToCompletion, "and stays so");
                }
            });
        }

        [Test]
        public static void A_token_may_outlive_the_request()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (var source = new CancellationTokenSource())
            {
                Request request = c.StartReceive<int>(new int[1], 0, 5);
                Task task = request.AsTask(source.Token);
                request.Dispose();
                source.Cancel();
                Check.That(!task.IsCompleted, "a given-up request goes on");
                c.Send<int>(new[] { 9 }, 0, 5);
                Check.That(task.Wait(Ranks.Patience), "to its end");
            }
        }

        [Test]
        public static void Wait_any_gives_the_lowest_that_is_done()
        {
            Ranks.RunAndLeaveTogether(2, c =>
            {
                int peer = 1 - c.Rank;
                var first = new int[1];
                var second = new int[1];
                using (Request one = c.StartReceive<int>(first, peer, 1))
                using (Request two = c.StartReceive<int>(second, peer, 2))
                {
                    c.Send<int>(new[] { 22 }, peer, 2);
                    Check.Equal(1, Request.WaitAny(Ranks.Patience, one, two));
                    Check.Equal(22, second[0]);
                    c.Barrier(); // the peer has looked, too
                    c.Send<int>(new[] { 11 }, peer, 1);
                    one.Wait();
                    Check.Equal(0, Request.WaitAny(Ranks.Patience, one, two));
                    Check.Equal(11, first[0]);
                }
            });
        }

        [Test]
        public static void Wait_any_refuses_what_it_cannot_wait_for()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Request request = c.StartBarrier();
                Check.Throws<ArgumentException>(() => Request.WaitAny(Moment));
                Check.Throws<ArgumentException>(() => Request.WaitAny(Moment, null));
                Check.Throws<ArgumentNullException>(
                    () => Request.WaitAny(Moment, request, null));
                request.Wait();
                request.Dispose();
                Check.Throws<ObjectDisposedException>(() => Request.WaitAny(Moment, request));
            }
        }

        [Test]
        public static void A_request_has_one_descriptor()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            using (Request request = c.StartBarrier())
            {
                int descriptor = request.Descriptor;
                Check.That(descriptor > 0, "descriptor " + descriptor);
                Check.Equal(descriptor, request.Descriptor);
            }
        }

        [Test]
        public static void A_disposed_request_is_refused()
        {
            using (Communicator c = Communicator.Create(0, 1, Ranks.NewRendezvous()))
            {
                Request request = c.StartBarrier();
                request.Wait();
                request.Dispose();
                request.Dispose();
                Check.Throws<ObjectDisposedException>(() => request.Test());
                Check.Throws<ObjectDisposedException>(() => request.Wait());
                Check.Throws<ObjectDisposedException>(() => request.Cancel());
                Check.Throws<ObjectDisposedException>(() => request.Descriptor.ToString());
                Check.That(request.AsTask().Wait(Ranks.Patience), "its task stays");
            }
        }

        [Test]
        public static void Started_operations_run_in_the_order_of_their_calls()
        {
            Ranks.RunAndLeaveTogether(3, c =>
            {
                var requests = new List<Request>();
                var data = new List<long[]>();
                for (int i = 0; i < 50; ++i)
                {
                    var values = new long[] { i + c.Rank, i };
                    data.Add(values);
                    requests.Add(c.StartAllReduce<long>(values));
                }

                Check.That(
                    Task.WaitAll(requests.Select(r => r.AsTask()).ToArray(), Ranks.Patience),
                    "all are done");
                for (int i = 0; i < 50; ++i)
                {
                    Check.Same(new long[] { 3 * i + 3, 3 * i }, data[i], "operation " + i);
                }
            });
        }

        private static async Task Awaited(Communicator communicator)
        {
            var data = new[] { communicator.Rank + 1f };
            await communicator.StartAllReduce<float>(data);
            Check.Equal(6f, data[0]);
            await communicator.StartBarrier().AsTask();
        }
    }
}
