using System;
using System.Linq;

namespace Trireme
{
    /// <content>Schedules from lists of the caller's, and what is known of each action.</content>
    public sealed partial class PipelineSchedule
    {
        /// <summary>
        /// Takes the actions of each rank. Does not check them: see <see cref="Inspect"/>.
        /// </summary>
        /// <param name="actions">The actions of each rank, in order.</param>
        /// <param name="microBatches">Micro-batches of a step.</param>
        /// <param name="rankOf">The rank of each stage. Each rank has one at least.</param>
        public static unsafe PipelineSchedule FromActions(
            PipelineAction[][] actions, int microBatches, int[] rankOf)
        {
            if (actions == null || actions.Any(list => list == null))
            {
                throw new ArgumentNullException(nameof(actions));
            }

            uint[] placement = RanksOf(rankOf, nameof(rankOf));
            NativePipelineAction[] all =
                actions.SelectMany(list => list).Select(action => action.Native()).ToArray();
            ulong[] counts = actions.Select(list => (ulong)list.Length).ToArray();

            // The address of an empty array would be null, which says that there is none.
            fixed (NativePipelineAction* first = all.Length == 0 ? new NativePipelineAction[1] : all)
            fixed (ulong* lengths = counts.Length == 0 ? new ulong[1] : counts)
            fixed (uint* ranks = placement.Length == 0 ? new uint[1] : placement)
            {
                PipelineScheduleHandle made;
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_schedule_from_actions(
                        (uint)actions.Length, Count(microBatches, nameof(microBatches)), ranks,
                        (uint)placement.Length, ref *first, lengths, out made));
                return new PipelineSchedule(made);
            }
        }

        /// <summary>Actions of all ranks.</summary>
        public long ActionCount
        {
            get { return (long)info.ActionCount; }
        }

        /// <summary>
        /// The order of the options; of Best the one from which the search began. Null for a text
        /// and for actions.
        /// </summary>
        public PipelineOrder? Order
        {
            get { return info.Order == 0 ? (PipelineOrder?)null : (PipelineOrder)info.Order; }
        }

        /// <summary>Whether the lists name SEND and RECV.</summary>
        public bool HasMessages
        {
            get { return info.HasMessages != 0; }
        }

        /// <summary>Best: schedules that were simulated. Else 0.</summary>
        public ulong Evaluations
        {
            get { return info.Evaluations; }
        }

        /// <summary>The rank of each stage.</summary>
        public int[] Placement()
        {
            var ranks = new uint[Stages];
            ulong count;
            TriremeException.Check(
                NativeMethods.trireme_pipeline_schedule_placement(
                    handle, ref ranks[0], (ulong)ranks.Length, out count));
            return Array.ConvertAll(ranks, rank => (int)rank);
        }

        /// <summary>
        /// Looks whether the schedule can run, as <see cref="Check"/> does, and tells what is
        /// wrong where it cannot.
        /// </summary>
        /// <param name="costs">Bytes of the stages; null does not look at memory.</param>
        /// <param name="limits">Bytes that each rank may hold; null is no limit.</param>
        /// <param name="buffers">Messages that may wait at a stage boundary; 0: any.</param>
        public PipelineCheck Inspect(
            PipelineCosts costs = null, ulong[] limits = null, int buffers = 0)
        {
            NativePipelineCheckReport report;
            Status status = CheckInto(costs, limits, buffers, out report);
            if (status != Status.InvalidState)
            {
                TriremeException.Check(status);
                return new PipelineCheck(report, null);
            }

            return new PipelineCheck(report, TriremeException.FromLastError(status).Message);
        }

        /// <summary>When each action of a rank begins and ends.</summary>
        public unsafe ActionTimes[] Times(int rank, PipelineCosts costs, int buffers = 0)
        {
            uint number = Count(rank, nameof(rank));
            double[] starts = null;
            double[] ends = null;
            Simulated(costs, buffers, (ref NativePipelineCosts native,
                ref NativePipelineLimits limits) =>
            {
                ulong count;
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_schedule_actions(
                        handle, number, ref *(NativePipelineAction*)null, 0, out count));
                starts = new double[count];
                ends = new double[count];
                fixed (double* first = starts)
                fixed (double* last = ends)
                {
                    TriremeException.Check(
                        NativeMethods.trireme_pipeline_schedule_times(
                            handle, ref native, ref limits, number, ref *first, ref *last, count,
                            out count));
                }
            });
            return starts.Zip(ends, (start, end) => new ActionTimes(start, end)).ToArray();
        }

        /// <summary>
        /// The actions that decide the makespan, from the first one to the last one.
        /// </summary>
        public unsafe CriticalStep[] CriticalPath(PipelineCosts costs, int buffers = 0)
        {
            NativePipelineCriticalStep[] steps = null;
            Simulated(costs, buffers, (ref NativePipelineCosts native,
                ref NativePipelineLimits limits) =>
            {
                ulong count;
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_schedule_critical_path(
                        handle, ref native, ref limits, ref *(NativePipelineCriticalStep*)null, 0,
                        out count));
                steps = new NativePipelineCriticalStep[count];
                fixed (NativePipelineCriticalStep* first = steps)
                {
                    TriremeException.Check(
                        NativeMethods.trireme_pipeline_schedule_critical_path(
                            handle, ref native, ref limits, ref *first, count, out count));
                }
            });
            return Array.ConvertAll(steps, step => new CriticalStep(step));
        }

        private delegate void SimulatedCall(
            ref NativePipelineCosts costs, ref NativePipelineLimits limits);

        private static unsafe void Simulated(PipelineCosts costs, int buffers, SimulatedCall call)
        {
            if (costs == null)
            {
                throw new ArgumentNullException(nameof(costs));
            }

            fixed (NativePipelineStageCosts* first = costs.NativeStages())
            {
                NativePipelineCosts native = costs.Native(first);
                NativePipelineLimits limits = LimitsOf(null, null);
                limits.Buffers = Count(buffers, nameof(buffers));
                call(ref native, ref limits);
            }
        }

        private static uint[] RanksOf(int[] rankOf, string name)
        {
            if (rankOf == null)
            {
                throw new ArgumentNullException(name);
            }

            return Array.ConvertAll(rankOf, rank => Count(rank, name));
        }
    }
}
