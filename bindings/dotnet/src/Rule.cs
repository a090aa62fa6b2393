using System;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// An update rule with its options: <see cref="Sgd"/>, <see cref="AdamW"/> and others, or a
    /// <see cref="UserRule"/>. A <see cref="RuleKind"/> is a rule with its defaults.
    /// </summary>
    public abstract class Rule
    {
        internal Rule(RuleKind kind)
        {
            Kind = kind;
        }

        /// <summary>The kind of the rule.</summary>
        public RuleKind Kind { get; }

        /// <summary>A rule with its defaults.</summary>
        public static implicit operator Rule(RuleKind kind)
        {
            return new DefaultRule(kind);
        }

        /// <summary>The native options; NULL for the defaults.</summary>
        internal virtual IntPtr Put(CallMemory memory)
        {
            return IntPtr.Zero;
        }

        /// <summary>The first part of native options.</summary>
        internal NativeRuleOptions Base<T>() where T : struct
        {
            return new NativeRuleOptions
            {
                StructSize = (uint)Marshal.SizeOf<T>(), Kind = (int)Kind,
            };
        }

        private sealed class DefaultRule : Rule
        {
            internal DefaultRule(RuleKind kind) : base(kind)
            {
            }
        }
    }

    /// <summary>
    /// A caller's own update rule, called for each piece of the model that this rank owns. A rule
    /// that treats each element alone gives the same bits on any number of ranks.
    /// </summary>
    public delegate void UpdateRule(Update update);

    /// <summary>A rule of the caller. Optimizer.Step() throws its exceptions again.</summary>
    public sealed class UserRule : Rule
    {
        /// <summary>A rule without state vectors, unless StateCount says so.</summary>
        public UserRule(UpdateRule update) : base(RuleKind.User)
        {
            Update = update ?? throw new ArgumentNullException(nameof(update));
        }

        /// <summary>Updates one piece.</summary>
        public UpdateRule Update { get; }

        /// <summary>State vectors, at most 8.</summary>
        public uint StateCount { get; set; }
    }

    /// <summary>One piece of the model for the caller's own rule; good during its call.</summary>
    public unsafe ref struct Update
    {
        private readonly NativeUpdate* native;

        internal Update(NativeUpdate* native)
        {
            this.native = native;
        }

        /// <summary>Type of the parameters.</summary>
        public ElementType Type
        {
            get { return (ElementType)native->Dtype; }
        }

        /// <summary>
        /// Type of gradients and states: F32 where Type is F16 or Bf16, else Type.
        /// </summary>
        public ElementType GradientType
        {
            get { return (ElementType)native->GradientDtype; }
        }

        /// <summary>Number of the parameter.</summary>
        public ulong Parameter
        {
            get { return native->Parameter; }
        }

        /// <summary>Index, within the parameter, of the first element of this piece.</summary>
        public ulong First
        {
            get { return native->First; }
        }

        /// <summary>Elements; 1 or more.</summary>
        public int Count
        {
            get { return checked((int)native->Count); }
        }

        /// <summary>Number of this step, from 1.</summary>
        public ulong Step
        {
            get { return native->Step; }
        }

        public double LearningRate
        {
            get { return native->LearningRate; }
        }

        /// <summary>The elements to update; F16 and Bf16 as ushort or Half.</summary>
        public Span<T> Parameters<T>() where T : struct
        {
            return new Span<T>((void*)native->Parameters, CountOf<T>(Type));
        }

        /// <summary>Reduced and clipped.</summary>
        public ReadOnlySpan<T> Gradients<T>() where T : struct
        {
            return new ReadOnlySpan<T>((void*)native->Gradients, CountOf<T>(GradientType));
        }

        /// <summary>A state vector, 0 before the first step.</summary>
        public Span<T> State<T>(int index) where T : struct
        {
            if (index < 0 || index >= NativeMethods.TRIREME_MAX_STATES)
            {
                throw new ArgumentOutOfRangeException(nameof(index), index, "At most 8 states.");
            }

            IntPtr state = (&native->States)[index];
            if (state == IntPtr.Zero)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(index), index, "The optimizer was created with fewer states.");
            }

            return new Span<T>((void*)state, CountOf<T>(GradientType));
        }

        private int CountOf<T>(ElementType type) where T : struct
        {
            if (!Elements.Fits<T>(type))
            {
                throw new ArgumentException(
                    "The elements are " + type + ", not " + typeof(T) + ".");
            }

            return Count;
        }
    }

    /// <summary>Runs the caller's rule of one optimizer, which refers to it.</summary>
    internal sealed class RuleRunner : CallbackRunner<RuleRunner>
    {
        // In a field for as long as the process lives: native code calls it in every step.
        private static readonly NativeMethods.UpdateCallback Callback = Run;

        private readonly UserRule rule;

        internal RuleRunner(UserRule rule)
        {
            this.rule = rule;
        }

        /// <summary>The native options, which name this.</summary>
        internal IntPtr Put(CallMemory memory)
        {
            return memory.Put(new NativeUserRuleOptions
            {
                Base = rule.Base<NativeUserRuleOptions>(),
                StateCount = rule.StateCount,
                Update = Marshal.GetFunctionPointerForDelegate(Callback),
                UserData = UserData,
            });
        }

        private static unsafe int Run(IntPtr update, IntPtr userData)
        {
            // Called from native code: no exception may leave.
            try
            {
                return Of(userData).Run((NativeUpdate*)update);
            }
            catch (Exception)
            {
                return 1;
            }
        }

        private unsafe int Run(NativeUpdate* update)
        {
            try
            {
                rule.Update(new Update(update));
                return 0;
            }
            catch (Exception exception)
            {
                Keep(exception);
                return 1;
            }
        }
    }
}
