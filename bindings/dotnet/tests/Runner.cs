using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;
using System.Threading;

namespace Trireme.Tests
{
    /// <summary>Marks a test: a static method without parameters.</summary>
    [AttributeUsage(AttributeTargets.Method)]
    internal sealed class TestAttribute : Attribute
    {
    }

    internal sealed class SkipException : Exception
    {
        public SkipException(string why) : base(why)
        {
        }
    }

    internal sealed class FailureException : Exception
    {
        public FailureException(string what) : base(what)
        {
        }
    }

    /// <summary>
    /// Runs every [Test], or those whose names contain one of the arguments. Last line:
    /// "N passed, N failed, N skipped"; exit code 1 if one failed.
    /// </summary>
    internal static class Runner
    {
        // Far above what any test takes, so that only a hang meets it.
        private static readonly TimeSpan Longest = TimeSpan.FromMinutes(5);

        private static int Main(string[] arguments)
        {
            if (arguments.Length == 2 && arguments[0] == "--child")
            {
                return Child.Answer(arguments[1]);
            }

            int passed = 0;
            int failed = 0;
            int skipped = 0;
            foreach (MethodInfo test in Tests().Where(
                         m => arguments.Length == 0 || arguments.Any((m.DeclaringType.Name + "." + m.Name).Contains)))
            {
                string name = test.DeclaringType.Name + "." + test.Name;
                Exception problem = null;
                var thread = new Thread(() => problem = Run(test)) { IsBackground = true };
                thread.Start();
                if (!thread.Join(Longest))
                {
                    problem = new FailureException("hangs");
                }

                if (problem == null)
                {
                    ++passed;
                    Console.WriteLine("ok      " + name);
                }
                else if (problem is SkipException)
                {
                    ++skipped;
                    Console.WriteLine("skipped: " + name + ": " + problem.Message);
                }
                else
                {
                    ++failed;
                    Console.WriteLine("FAILED  " + name + ": " + problem);
                }
            }

            Console.WriteLine(
                passed + " passed, " + failed + " failed, " + skipped + " skipped");
            return failed == 0 && passed > 0 ? 0 : 1;
        }

        private static IEnumerable<MethodInfo> Tests()
        {
            return typeof(Runner).Assembly.GetTypes()
                .SelectMany(type => type.GetMethods(BindingFlags.Static | BindingFlags.Public))
                .Where(method => method.GetCustomAttribute<TestAttribute>() != null)
                .OrderBy(method => method.DeclaringType.Name + "." + method.Name);
        }

        private static Exception Run(MethodInfo test)
        {
            try
            {
                test.Invoke(null, null);
                return null;
            }
            catch (TargetInvocationException invocation)
            {
                return invocation.InnerException;
            }
            catch (Exception exception)
            {
                return exception;
            }
        }
    }

    internal static class Check
    {
        public static void That(bool right, string what)
        {
            if (!right)
            {
                throw new FailureException(what);
            }
        }

        public static void Equal<T>(T wanted, T got, string what = "")
        {
            if (!EqualityComparer<T>.Default.Equals(wanted, got))
            {
                throw new FailureException(what + ": wanted " + wanted + ", got " + got);
            }
        }

        public static void Same<T>(T[] wanted, T[] got, string what = "")
        {
            Equal(wanted.Length, got.Length, what + " length");
            for (int i = 0; i < wanted.Length; ++i)
            {
                if (!EqualityComparer<T>.Default.Equals(wanted[i], got[i]))
                {
                    Equal(wanted[i], got[i], what + " element " + i);
                }
            }
        }

        public static void Contains(string part, string text)
        {
            if (text == null || text.IndexOf(part, StringComparison.Ordinal) < 0)
            {
                throw new FailureException("'" + text + "' does not contain '" + part + "'");
            }
        }

        /// <summary>Runs an action that must throw exactly this exception.</summary>
        public static TException Throws<TException>(Action action) where TException : Exception
        {
            try
            {
                action();
            }
            catch (Exception exception)
            {
                if (exception.GetType() == typeof(TException))
                {
                    return (TException)exception;
                }

                throw new FailureException(
                    "wanted " + typeof(TException).Name + ", got " + exception);
            }

            throw new FailureException("wanted " + typeof(TException).Name + ", got nothing");
        }
    }

    /// <summary>Ranks as threads of this process.</summary>
    internal static class Ranks
    {
        public static readonly int[] Worlds = { 1, 2, 3, 4, 5, 8 };

        // Generous: only a defect meets it, also on a busy machine.
        public static readonly TimeSpan Patience = TimeSpan.FromSeconds(120);
        private static int groups;

        public static string NewRendezvous()
        {
            return "local://dotnet-tests-" + Interlocked.Increment(ref groups);
        }

        /// <summary>Runs a function on every rank and throws what the ranks threw.</summary>
        public static void Run(int worldSize, Action<Communicator> rankFunction)
        {
            string rendezvous = NewRendezvous();
            OnThreads(worldSize, rank =>
            {
                using (Communicator communicator =
                           Communicator.Create(rank, worldSize, rendezvous, Patience))
                {
                    // A rank that leaves early would take its peers' last operation along.
                    rankFunction(communicator);
                }
            });
        }

        /// <summary>As Run(), but ranks leave together: no rank sees a peer leave.</summary>
        public static void RunAndLeaveTogether(int worldSize, Action<Communicator> rankFunction)
        {
            using (var left = new CountdownEvent(worldSize))
            {
                Run(worldSize, communicator =>
                {
                    try
                    {
                        rankFunction(communicator);
                    }
                    catch (Exception)
                    {
                        communicator.Abort("a test failed"); // no peer waits for this one
                        throw;
                    }
                    finally
                    {
                        left.Signal();
                        left.Wait();
                    }
                });
            }
        }

        public static void OnThreads(int count, Action<int> function)
        {
            var failures = new Exception[count];
            var threads = new Thread[count];
            for (int i = 0; i < count; ++i)
            {
                int index = i;
                threads[i] = new Thread(() =>
                {
                    try
                    {
                        function(index);
                    }
                    catch (Exception exception)
                    {
                        failures[index] = exception;
                    }
                });
                threads[i].IsBackground = true;
                threads[i].Start();
            }

            foreach (Thread thread in threads)
            {
                thread.Join();
            }

            var report = failures
                .Select((failure, index) => failure == null ? null : "[" + index + "] " + failure)
                .Where(line => line != null).ToArray();
            if (report.Length > 0)
            {
                throw new FailureException(string.Join("\n", report));
            }
        }
    }
}
