using System;

namespace Trireme
{
    /// <summary>A rule of a schedule that can run.</summary>
    public enum PipelineRule
    {
        /// <summary>All rules hold.</summary>
        None = NativeMethods.TRIREME_PIPELINE_RULE_NONE,

        /// <summary>Kinds, stages and micro-batches are known.</summary>
        Known = NativeMethods.TRIREME_PIPELINE_RULE_KNOWN,

        /// <summary>The actions of a stage stand in the list of its rank.</summary>
        Rank = NativeMethods.TRIREME_PIPELINE_RULE_RANK,

        /// <summary>No action comes twice. B excludes I and W of the same micro-batch.</summary>
        Once = NativeMethods.TRIREME_PIPELINE_RULE_ONCE,

        /// <summary>Each stage has F, and B or I and W, of each micro-batch.</summary>
        Complete = NativeMethods.TRIREME_PIPELINE_RULE_COMPLETE,

        /// <summary>
        /// I comes after F, W after I, and a stage after the one before it on the same rank.
        /// </summary>
        Order = NativeMethods.TRIREME_PIPELINE_RULE_ORDER,

        /// <summary>Each message is sent and received.</summary>
        Message = NativeMethods.TRIREME_PIPELINE_RULE_MESSAGE,

        /// <summary>A link's messages are received in the order in which they are sent.</summary>
        MessageOrder = NativeMethods.TRIREME_PIPELINE_RULE_MESSAGE_ORDER,

        /// <summary>No ranks wait for each other in a circle.</summary>
        Cycle = NativeMethods.TRIREME_PIPELINE_RULE_CYCLE,

        /// <summary>Each rank's peak is within its limit.</summary>
        Memory = NativeMethods.TRIREME_PIPELINE_RULE_MEMORY,

        /// <summary>
        /// A pair is two neighbours, one F and one I or B, of two micro-batches.
        /// </summary>
        Pair = NativeMethods.TRIREME_PIPELINE_RULE_PAIR,

        /// <summary>
        /// A stage that is gathered anywhere is gathered where it is used. REDUCE comes last.
        /// </summary>
        Unit = NativeMethods.TRIREME_PIPELINE_RULE_UNIT,
    }

    /// <summary>The result of <see cref="PipelineSchedule.Inspect"/>.</summary>
    public sealed class PipelineCheck
    {
        internal PipelineCheck(NativePipelineCheckReport report, string message)
        {
            Rule = (PipelineRule)report.Rule;
            Rank = (int)report.Rank;
            Index = (long)report.Index;
            Action = new PipelineAction(report.Action);
            PeakBytes = report.PeakBytes;
            Message = message;
        }

        /// <summary>The first rule that is broken, or None.</summary>
        public PipelineRule Rule { get; }

        /// <summary>The rank that breaks it.</summary>
        public int Rank { get; }

        /// <summary>
        /// The place of the action in the rank's list. That of a missing one is its length.
        /// </summary>
        public long Index { get; }

        /// <summary>The action.</summary>
        public PipelineAction Action { get; }

        /// <summary>The largest peak of a rank, if all rules hold and costs were given.</summary>
        public ulong PeakBytes { get; }

        /// <summary>The library's words on a broken rule; null if all hold.</summary>
        public string Message { get; }
    }

    /// <summary>Times of one rank, in seconds.</summary>
    public struct RankTimes
    {
        internal RankTimes(NativePipelineRankTimes times)
        {
            FirstStart = times.FirstStart;
            LastEnd = times.LastEnd;
            Work = times.Work;
            PeakBytes = times.PeakBytes;
            SentBytes = times.SentBytes;
        }

        /// <summary>When its first action begins.</summary>
        public double FirstStart { get; }

        /// <summary>When its last action ends.</summary>
        public double LastEnd { get; }

        /// <summary>Time in actions.</summary>
        public double Work { get; }

        /// <summary>Its peak.</summary>
        public ulong PeakBytes { get; }

        /// <summary>Bytes that it sends.</summary>
        public ulong SentBytes { get; }
    }

    /// <summary>Times of a step, in seconds.</summary>
    public struct StepReport
    {
        internal StepReport(NativePipelineStepReport report, NativePipelineRankTimes[] ranks)
        {
            Makespan = report.Makespan;
            Span = report.Span;
            Work = report.Work;
            Idle = report.Idle;
            Bubble = report.Bubble;
            LowerBound = report.LowerBound;
            PeakBytes = report.PeakBytes;
            SentBytes = report.SentBytes;
            Ranks = Array.ConvertAll(ranks, times => new RankTimes(times));
        }

        /// <summary>From the begin of the step to the end of its last action.</summary>
        public double Makespan { get; }

        /// <summary>The longest time from a rank's first action to its last one.</summary>
        public double Span { get; }

        /// <summary>Time in actions, of all ranks.</summary>
        public double Work { get; }

        /// <summary>Ranks times Makespan, less Work.</summary>
        public double Idle { get; }

        /// <summary>The part of the time in which ranks wait.</summary>
        public double Bubble { get; }

        /// <summary>No schedule of these stages and costs has a shorter makespan.</summary>
        public double LowerBound { get; }

        /// <summary>The largest peak of a rank.</summary>
        public ulong PeakBytes { get; }

        /// <summary>Bytes of all messages between ranks.</summary>
        public ulong SentBytes { get; }

        /// <summary>The same by rank.</summary>
        public RankTimes[] Ranks { get; }
    }

    /// <summary>When an action begins and ends, in seconds from the begin of the step.</summary>
    public struct ActionTimes
    {
        internal ActionTimes(double start, double end)
        {
            Start = start;
            End = end;
        }

        /// <summary>When it begins.</summary>
        public double Start { get; }

        /// <summary>When it ends.</summary>
        public double End { get; }
    }

    /// <summary>A step of the critical path.</summary>
    public struct CriticalStep
    {
        internal CriticalStep(NativePipelineCriticalStep step)
        {
            Rank = (int)step.Rank;
            Index = (long)step.Index;
            Waited = step.Waited != 0;
        }

        /// <summary>The rank.</summary>
        public int Rank { get; }

        /// <summary>The place of the action in the rank's list.</summary>
        public long Index { get; }

        /// <summary>
        /// Whether the action waited for the one before it in the path, on another rank.
        /// </summary>
        public bool Waited { get; }
    }

    /// <summary>Names of orders.</summary>
    public static class PipelineOrders
    {
        /// <summary>Names an order, such as "zb-h1"; "unknown" if it is none.</summary>
        public static string Name(PipelineOrder order)
        {
            return Utf8.Read(NativeMethods.trireme_pipeline_order_name(order));
        }

        /// <summary>
        /// Reads a name, also one of other libraries, such as "Interleaved1F1B". Letters may be
        /// large or small.
        /// </summary>
        public static PipelineOrder Parse(string name)
        {
            if (name == null)
            {
                throw new ArgumentNullException(nameof(name));
            }

            using (var text = new Utf8(name, nameof(name)))
            {
                PipelineOrder order;
                TriremeException.Check(
                    NativeMethods.trireme_pipeline_order_parse(text.Pointer, out order));
                return order;
            }
        }
    }
}
