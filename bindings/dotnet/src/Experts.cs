using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// A layer of experts that lie on the ranks of a communicator. A step calls Route, Dispatch and
    /// Combine, and then CombineBackward, DispatchBackward and RouteBackward. The caller computes
    /// the router's scores and the experts in between. All passes but the last are collective. One
    /// thread at a time may make a pass.
    /// </summary>
    public sealed class Experts : IDisposable
    {
        private readonly ExpertsHandle handle;
        private readonly ElementType elementType;
        private readonly long width;
        private readonly int experts;
        private readonly int topK;
        private readonly long keptBytes;

        private Experts(ExpertsHandle handle, ExpertsOptions options)
        {
            this.handle = handle;
            elementType = options.ElementType;
            width = options.Width;
            experts = options.Experts;
            topK = options.TopK;
            keptBytes = Info.KeptBytes;
        }

        /// <summary>Sizes and counts so far.</summary>
        public unsafe ExpertsInfo Info
        {
            get
            {
                var info = new NativeExpertsInfo { StructSize = (uint)sizeof(NativeExpertsInfo) };
                TriremeException.Check(NativeMethods.trireme_experts_get_info(handle, ref info));
                return new ExpertsInfo(info);
            }
        }

        /// <summary>Makes a layer. Does not wait for the other ranks.</summary>
        public static Experts Create(Communicator communicator, ExpertsOptions options)
        {
            if (communicator == null)
            {
                throw new ArgumentNullException(nameof(communicator));
            }

            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            if (options.Name == null)
            {
                throw new ArgumentNullException(nameof(options.Name));
            }

            using (var memory = new CallMemory())
            {
                NativeExpertsOptions native =
                    options.Native(memory.Put(options.Name, nameof(options.Name)));
                ExpertsHandle made;
                TriremeException.Check(NativeMethods.trireme_experts_create(
                    communicator.Handle, ref native, out made));
                return new Experts(made, options);
            }
        }

        /// <summary>
        /// Chooses the experts of this rank's rows. There is a row of scores for each of them.
        /// </summary>
        /// <param name="padding">
        /// A byte for each row; one that is not 0 marks a padding row. Null: no row is padding.
        /// </param>
        /// <param name="leafRows">
        /// Rows of each of this rank's leaves. Null, if it has one leaf.
        /// </param>
        public unsafe Routing Route(
            ReadOnlySpan<float> scores, byte[] padding = null, ulong[] leafRows = null,
            TimeSpan timeout = default(TimeSpan))
        {
            ExpertsInfo info = Info;
            if (scores.Length % experts != 0)
            {
                throw new ArgumentException(
                    scores.Length + " scores are no rows of " + experts + ".", nameof(scores));
            }

            var routing = new Routing(info, scores.Length / experts, experts, topK);
            if (padding != null)
            {
                Elements.CheckLength(nameof(padding), padding.Length, routing.Rows);
            }

            if (leafRows != null)
            {
                Elements.CheckLength(nameof(leafRows), leafRows.Length, info.OwnLeaves.Count);
            }

            // The address of an empty array would be null, which means that there is none.
            byte[] marks = padding == null || padding.Length > 0 ? padding : new byte[1];
            fixed (byte* given = &Elements.First(scores))
            fixed (byte* marked = marks)
            fixed (ulong* counts = leafRows)
            {
                routing.Run(handle, given, marked, counts, timeout);
            }

            return routing;
        }

        /// <summary>
        /// Brings routed rows to their experts: by expert, by leaf, in the order of rows.
        /// </summary>
        public unsafe void Dispatch<T>(
            Routing routing, ReadOnlySpan<T> rows, Span<T> received,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            CheckRows(routing, rows, nameof(rows), routing?.Rows ?? 0);
            CheckRows<T>(routing, received, nameof(received), routing.ReceivedRows);
            NativePassOptions options = Vocabulary.PassOptions(timeout);
            fixed (byte* kept = routing.Kept)
            fixed (byte* given = &Elements.First(rows))
            fixed (byte* result = &Elements.First<T>(received))
            {
                TriremeException.Check(NativeMethods.trireme_experts_dispatch(
                    handle, kept, given, result, ref options));
            }
        }

        /// <summary>
        /// Brings results back, and adds those of each row, each times its weight.
        /// </summary>
        /// <param name="returned">
        /// Gets the SentRows results, which CombineBackward needs. Null without a backward pass.
        /// </param>
        public unsafe void Combine<T>(
            Routing routing, ReadOnlySpan<T> results, Span<T> output, T[] returned = null,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            CheckRows(routing, results, nameof(results), routing?.ReceivedRows ?? 0);
            CheckRows<T>(routing, output, nameof(output), routing.Rows);
            if (returned != null)
            {
                CheckRows<T>(routing, returned, nameof(returned), routing.SentRows);
            }

            NativePassOptions options = Vocabulary.PassOptions(timeout);
            fixed (byte* kept = routing.Kept)
            fixed (byte* given = &Elements.First(results))
            fixed (byte* back = &Elements.First<T>(returned))
            fixed (byte* result = &Elements.First<T>(output))
            {
                TriremeException.Check(NativeMethods.trireme_experts_combine(
                    handle, kept, given, returned == null ? null : back, result, ref options));
            }
        }

        /// <summary>
        /// Brings gradients of results to their experts, and writes those of weights.
        /// </summary>
        public unsafe void CombineBackward<T>(
            Routing routing, ReadOnlySpan<T> dOutput, ReadOnlySpan<T> returned, Span<T> dResults,
            Span<float> dWeights, TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            CheckRows(routing, dOutput, nameof(dOutput), routing?.Rows ?? 0);
            CheckRows(routing, returned, nameof(returned), routing.SentRows);
            CheckRows<T>(routing, dResults, nameof(dResults), routing.ReceivedRows);
            Elements.CheckLength(nameof(dWeights), dWeights.Length, routing.Weights.Length);
            NativePassOptions options = Vocabulary.PassOptions(timeout);
            fixed (byte* kept = routing.Kept)
            fixed (byte* given = &Elements.First(dOutput))
            fixed (byte* back = &Elements.First(returned))
            fixed (byte* result = &Elements.First<T>(dResults))
            {
                TriremeException.Check(NativeMethods.trireme_experts_combine_backward(
                    handle, kept, given, back, result, ref MemoryMarshal.GetReference(dWeights),
                    ref options));
            }
        }

        /// <summary>
        /// Brings gradients of received rows back, and adds those of each row.
        /// </summary>
        public unsafe void DispatchBackward<T>(
            Routing routing, ReadOnlySpan<T> dReceived, Span<T> dRows,
            TimeSpan timeout = default(TimeSpan)) where T : struct
        {
            CheckRows(routing, dReceived, nameof(dReceived), routing?.ReceivedRows ?? 0);
            CheckRows<T>(routing, dRows, nameof(dRows), routing.Rows);
            NativePassOptions options = Vocabulary.PassOptions(timeout);
            fixed (byte* kept = routing.Kept)
            fixed (byte* given = &Elements.First(dReceived))
            fixed (byte* result = &Elements.First<T>(dRows))
            {
                TriremeException.Check(NativeMethods.trireme_experts_dispatch_backward(
                    handle, kept, given, result, ref options));
            }
        }

        /// <summary>
        /// Writes the gradients of this rank's scores. They may be written over the scores.
        /// </summary>
        /// <param name="dMeanProbabilities">
        /// A number for each expert, the same on all ranks. Null, if there is none.
        /// </param>
        public unsafe void RouteBackward(
            Routing routing, ReadOnlySpan<float> scores, ReadOnlySpan<float> dWeights,
            Span<float> dScores, double[] dMeanProbabilities = null)
        {
            CheckRouting(routing);
            long count = (long)routing.Rows * experts;
            Elements.CheckLength(nameof(scores), scores.Length, count);
            Elements.CheckLength(nameof(dWeights), dWeights.Length, routing.Weights.Length);
            Elements.CheckLength(nameof(dScores), dScores.Length, count);
            if (dMeanProbabilities != null)
            {
                Elements.CheckLength(
                    nameof(dMeanProbabilities), dMeanProbabilities.Length, experts);
            }

            fixed (byte* kept = routing.Kept)
            fixed (byte* given = &Elements.First(scores))
            fixed (byte* weights = &Elements.First(dWeights))
            fixed (double* means = dMeanProbabilities)
            {
                TriremeException.Check(NativeMethods.trireme_experts_route_backward(
                    handle, kept, (float*)given, (float*)weights, means,
                    ref MemoryMarshal.GetReference(dScores)));
            }
        }

        /// <summary>Destroys the layer.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        /// <summary>The library reads as many bytes of a routing as one of its own has.</summary>
        private void CheckRouting(Routing routing)
        {
            if (routing == null)
            {
                throw new ArgumentNullException(nameof(routing));
            }

            if (routing.Kept.Length != keptBytes)
            {
                throw new ArgumentException("The routing of another layer.", nameof(routing));
            }
        }

        private void CheckRows<T>(
            Routing routing, ReadOnlySpan<T> array, string name, long rows) where T : struct
        {
            CheckRouting(routing);
            Vocabulary.CheckLength<T>(name, elementType, array.Length, rows * width);
        }
    }
}
