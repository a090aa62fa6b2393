using System;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// A caller's own update rule, called for each piece of the model this rank owns. For the same
    /// bits on any number of ranks it treats each element alone.
    /// </summary>
    public delegate void UpdateRule(Update update);

    /// <summary>The update rule of a model; zero is the default where there is one.</summary>
    public sealed class OptimizerOptions
    {
        public RuleKind Kind { get; set; }

        public OptimizerFlags Flags { get; set; }

        /// <summary>State vectors of the caller's own rule, at most 8.</summary>
        public uint StateCount { get; set; }

        /// <summary>0 is 0.001, of Adafactor 0.01.</summary>
        public double LearningRate { get; set; }

        /// <summary>Of SGD, RMSProp and LARS; 0 is none. Of Muon 0 is 0.95.</summary>
        public double Momentum { get; set; }

        /// <summary>0 is 0.9.</summary>
        public double Beta1 { get; set; }

        /// <summary>0 is 0.999, of RMSProp (alpha) and Lion 0.99.</summary>
        public double Beta2 { get; set; }

        /// <summary>
        /// 0 is 1e-8, of Adagrad 1e-10, of LAMB 1e-6, of LARS 0, of Adafactor 2^-52 for parameters of
        /// f64, else 2^-23.
        /// </summary>
        public double Epsilon { get; set; }

        public double WeightDecay { get; set; }

        /// <summary>
        /// The global norm of all gradients is clipped to this; 0 is no clipping.
        /// </summary>
        public double MaxNorm { get; set; }

        /// <summary>
        /// Each reduced gradient is clipped to [-MaxValue, MaxValue] before that; 0 is no clipping.
        /// </summary>
        public double MaxValue { get; set; }

        /// <summary>
        /// After every so many steps, Model.CheckReplicas() is part of the step; 0 is never.
        /// </summary>
        public ulong CheckEvery { get; set; }

        /// <summary>
        /// The ranks of all models, such as data x tensor, whose gradients MaxNorm is for; they
        /// step together. Null: the model's own.
        /// </summary>
        public Communicator NormRanks { get; set; }

        /// <summary>
        /// Instead of MaxNorm: the norm of the gradients of each ParameterOptions.NormGroup is
        /// clipped to the number of its group; 0 is no clipping. Null: no groups.
        /// </summary>
        public double[] GroupMaxNorms { get; set; }

        /// <summary>
        /// The learning rate of each ParameterOptions.NormGroup is the optimizer's times the number
        /// of the group. Null: all 1.
        /// </summary>
        public double[] GroupRateFactors { get; set; }

        /// <summary>
        /// Instead of WeightDecay: that of each ParameterOptions.NormGroup. Null: WeightDecay.
        /// </summary>
        public double[] GroupWeightDecays { get; set; }

        /// <summary>
        /// The first loss scale, such as 65536: a power of two, as all that follow. 0: losses are
        /// not scaled. The caller multiplies its loss by Optimizer.LossScale.
        /// </summary>
        public double LossScale { get; set; }

        /// <summary>By which it grows; 0 is 2.</summary>
        public double LossScaleGrowth { get; set; }

        /// <summary>By which it is multiplied after an overflow; 0 is 0.5.</summary>
        public double LossScaleBackoff { get; set; }

        /// <summary>It is never smaller; 0 is 1, or LossScale if that is less.</summary>
        public double LossScaleFloor { get; set; }

        /// <summary>It grows after so many steps without an overflow; 0 is 2000.</summary>
        public ulong LossScaleWindow { get; set; }

        /// <summary>
        /// It backs off at this overflow since it last grew, and at each further one; 0 is 1.
        /// </summary>
        public ulong LossScaleHysteresis { get; set; }
        /// <summary>Of LARS; 0 is 0.001.</summary>
        public double TrustCoefficient { get; set; }

        /// <summary>
        /// The trust ratio of LAMB and LARS is at most this; 0 is no limit.
        /// </summary>
        public double MaxTrust { get; set; }

        /// <summary>
        /// A directory: state lies in a file there that has no name, and streams through memory at
        /// each step. The bits are the same. Null: all state stays in memory.
        /// </summary>
        public string OffloadPath { get; set; }

        /// <summary>Which part of the state's bytes lies there; 0 is all.</summary>
        public double OffloadRatio { get; set; }

        /// <summary>Most memory for what is on its way; 0 is 8 MiB.</summary>
        public ulong OffloadBufferBytes { get; set; }

        /// <summary>
        /// With <see cref="OptimizerFlags.StochasticRounding"/>: other numbers, other draws.
        /// </summary>
        public ulong RoundingSeed { get; set; }

        /// <summary>
        /// Of Adafactor: the mean of squares moves by t^Beta2Decay in step t; 0 is -0.8.
        /// </summary>
        public double Beta2Decay { get; set; }

        /// <summary>
        /// Of Adafactor: the root mean square of a parameter's update is clipped to this; 0 is 1.
        /// </summary>
        public double MaxUpdateRms { get; set; }

        /// <summary>
        /// Of Adafactor: the root mean square of a parameter counts as this at least; 0 is 0.001.
        /// </summary>
        public double MinParameterRms { get; set; }

        /// <summary>
        /// Of Muon: GroupFlags.Elementwise for each ParameterOptions.NormGroup whose matrices are to
        /// be treated as other parameters, as embeddings and output layers should be. Null: none.
        /// </summary>
        public GroupFlags[] GroupFlags { get; set; }

        /// <summary>Of Muon: Newton-Schulz steps, at most 99; 0 is 5.</summary>
        public uint OrthogonalSteps { get; set; }

        /// <summary>Of Muon.</summary>
        public RateAdjustment RateAdjustment { get; set; }

        /// <summary>The caller's own rule; only and always with RuleKind.User.</summary>
        public UpdateRule Rule { get; set; }
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

        /// <summary>Which of its elements comes first here.</summary>
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

    /// <summary>The update rule of a model, run on the part of it that this rank owns.</summary>
    public sealed partial class Optimizer : IDisposable
    {
        // In a field for as long as the process lives: native code calls it in every step.
        private static readonly NativeMethods.UpdateCallback Callback = RunRule;

        private readonly OptimizerHandle handle;
        private readonly RuleRunner runner;
        private readonly HookRunner hook;
        private ScheduleRunner schedule;

        /// <summary>Gives a sealed model its rule. Collective.</summary>
        public unsafe Optimizer(Model model, OptimizerOptions options)
        {
            if (model == null)
            {
                throw new ArgumentNullException(nameof(model));
            }

            if (options == null)
            {
                throw new ArgumentNullException(nameof(options));
            }

            ulong groupCount = 0;
            foreach (Array numbers in new Array[]
            {
                options.GroupMaxNorms, options.GroupRateFactors, options.GroupWeightDecays,
                options.GroupFlags,
            })
            {
                ulong count = (ulong)(numbers?.Length ?? 0);
                if (count != 0 && groupCount != 0 && count != groupCount)
                {
                    throw new ArgumentException(
                        "GroupMaxNorms, GroupRateFactors, GroupWeightDecays, GroupFlags have " + count
                        + " and " + groupCount + " numbers.", nameof(options));
                }

                groupCount = Math.Max(groupCount, count);
            }

            var native = new NativeOptimizerOptions
            {
                StructSize = (uint)sizeof(NativeOptimizerOptions),
                Kind = (int)options.Kind,
                Flags = (uint)options.Flags,
                StateCount = options.StateCount,
                LearningRate = options.LearningRate,
                Momentum = options.Momentum,
                Beta1 = options.Beta1,
                Beta2 = options.Beta2,
                Epsilon = options.Epsilon,
                WeightDecay = options.WeightDecay,
                MaxNorm = options.MaxNorm,
                MaxValue = options.MaxValue,
                CheckEvery = options.CheckEvery,
                LossScale = options.LossScale,
                LossScaleGrowth = options.LossScaleGrowth,
                LossScaleBackoff = options.LossScaleBackoff,
                LossScaleFloor = options.LossScaleFloor,
                LossScaleWindow = options.LossScaleWindow,
                LossScaleHysteresis = options.LossScaleHysteresis,
                TrustCoefficient = options.TrustCoefficient,
                MaxTrust = options.MaxTrust,
                OffloadRatio = options.OffloadRatio,
                OffloadBufferBytes = options.OffloadBufferBytes,
                RoundingSeed = options.RoundingSeed,
                Beta2Decay = options.Beta2Decay,
                MaxUpdateRms = options.MaxUpdateRms,
                MinParameterRms = options.MinParameterRms,
                OrthogonalSteps = options.OrthogonalSteps,
                RateAdjustment = (int)options.RateAdjustment,
            };
            // Weak: rules run inside Step(), where this object lives, and a rule that refers to
            // its own optimizer must not keep both for ever.
            GCHandle userData = default(GCHandle);
            if (options.Rule != null)
            {
                runner = new RuleRunner(options.Rule);
                userData = GCHandle.Alloc(runner, GCHandleType.Weak);
                native.Update = Marshal.GetFunctionPointerForDelegate(Callback);
                native.UserData = GCHandle.ToIntPtr(userData);
            }

            Status status;
            bool held = false;
            try
            {
                if (options.NormRanks != null)
                {
                    options.NormRanks.Handle.DangerousAddRef(ref held);
                    native.NormRanks = options.NormRanks.Handle.DangerousGetHandle();
                }

                using (var path = new Utf8(options.OffloadPath, nameof(options)))
                // An empty array is a null pointer here.
                fixed (double* norms = options.GroupMaxNorms)
                fixed (double* factors = options.GroupRateFactors)
                fixed (double* decays = options.GroupWeightDecays)
                fixed (GroupFlags* flags = options.GroupFlags)
                {
                    native.GroupMaxNorms = (IntPtr)norms;
                    native.GroupRateFactors = (IntPtr)factors;
                    native.GroupWeightDecays = (IntPtr)decays;
                    native.GroupFlags = (IntPtr)flags;
                    native.GroupCount = groupCount;
                    native.OffloadPath = path.Pointer;
                    status = NativeMethods.trireme_optimizer_create(
                        model.Handle, ref native, out handle);
                }
            }
            finally
            {
                if (held)
                {
                    options.NormRanks.Handle.DangerousRelease();
                }
            }

            if (status != Status.Ok)
            {
                TriremeException failure = TriremeException.FromLastError(status);
                if (userData.IsAllocated)
                {
                    userData.Free();
                }

                throw failure;
            }

            handle.Parent = model;
            Model = model;
            hook = model.Handle.Hook;
            handle.Own(userData);
        }

        /// <summary>
        /// The learning rate of the steps that follow, which a schedule multiplies; the same on all
        /// ranks.
        /// </summary>
        public double LearningRate
        {
            get
            {
                double rate;
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_learning_rate(handle, out rate));
                return rate;
            }

            set
            {
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_set_learning_rate(handle, value));
            }
        }

        /// <summary>
        /// The learning rate of the next step, by the schedule; without factors of groups. What the
        /// caller's own schedule throws is thrown again.
        /// </summary>
        public double StepRate
        {
            get
            {
                double rate;
                using (var held = new HeldHandle(handle))
                {
                    ScheduleRunner.Check(
                        schedule,
                        NativeMethods.trireme_optimizer_get_step_rate(held.Address, out rate));
                }

                return rate;
            }
        }

        /// <summary>
        /// Multiplies the learning rate of each step by the factor of a schedule; null ends that. The
        /// same on all ranks, and again after Load(). When the caller's own function throws,
        /// <see cref="Step"/> throws that, has changed nothing and may be called again.
        /// </summary>
        public unsafe void SetSchedule(Schedule given)
        {
            if (given == null)
            {
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_set_schedule(handle, null));
                schedule = null;
                handle.OwnSchedule(default(GCHandle));
                return;
            }

            NativeScheduleOptions options = given.Native();
            ScheduleRunner asked = given.Factor == null ? null : new ScheduleRunner(given.Factor);
            GCHandle userData = asked == null ? default(GCHandle) : asked.GiveTo(ref options);
            Status status = NativeMethods.trireme_optimizer_set_schedule(handle, &options);
            if (status != Status.Ok)
            {
                TriremeException failure = TriremeException.FromLastError(status);
                if (userData.IsAllocated)
                {
                    userData.Free();
                }

                throw failure;
            }

            schedule = asked;
            handle.OwnSchedule(userData);
        }

        /// <summary>
        /// Sets one number of OptimizerOptions.GroupRateFactors, for the steps that follow. The same
        /// on all ranks.
        /// </summary>
        public void SetGroupRateFactor(ulong group, double factor)
        {
            TriremeException.Check(
                NativeMethods.trireme_optimizer_set_group_rate_factor(handle, group, factor));
        }

        /// <summary>Steps that were made.</summary>
        public ulong StepCount
        {
            get
            {
                ulong steps;
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_step_count(handle, out steps));
                return steps;
            }
        }

        /// <summary>Global norm of the last step's gradients before clipping.</summary>
        public double GradientNorm
        {
            get
            {
                double norm;
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_get_gradient_norm(handle, out norm));
                return norm;
            }
        }

        /// <summary>
        /// Norm of the last step's gradients of one group before clipping; needs
        /// OptimizerOptions.GroupMaxNorms.
        /// </summary>
        public double GroupNorm(ulong group)
        {
            double norm;
            TriremeException.Check(
                NativeMethods.trireme_optimizer_get_group_norm(handle, group, out norm));
            return norm;
        }

        /// <summary>
        /// Ends a step: reduces, clips, updates. Collective. What the caller's own rule or hook
        /// threw on this rank is thrown again here; the other ranks get a CallbackException.
        /// </summary>
        public void Step()
        {
            if (runner != null)
            {
                runner.Thrown = null;
            }

            using (var held = new HeldHandle(handle))
            {
                Finish(NativeMethods.trireme_optimizer_step(held.Address));
            }
        }

        /// <summary>
        /// Follows the steps of ranks that still have data, until all ranks have come here: for a
        /// rank of an uneven model that has run out of data. All then hold the same parameters.
        /// Collective; throws as <see cref="Step"/>.
        /// </summary>
        /// <returns>How many steps were followed.</returns>
        public ulong Join()
        {
            if (runner != null)
            {
                runner.Thrown = null;
            }

            ulong steps;
            using (var held = new HeldHandle(handle))
            {
                Finish(NativeMethods.trireme_optimizer_join(held.Address, out steps));
            }

            return steps;
        }

        /// <summary>
        /// Gives the state back, once no trainer needs it; waits for no peer. Only then may the
        /// model get another.
        /// </summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        internal OptimizerHandle Handle
        {
            get { return handle; }
        }

        internal Model Model { get; }

        /// <summary>
        /// What a schedule, a rule or a hook of the caller threw, once; all of them forget theirs.
        /// </summary>
        internal ExceptionDispatchInfo TakeThrown()
        {
            ExceptionDispatchInfo bySchedule = schedule?.TakeThrown();
            ExceptionDispatchInfo byRule = runner?.Thrown;
            ExceptionDispatchInfo byHook = hook?.TakeThrown();
            if (runner != null)
            {
                runner.Thrown = null;
            }

            return bySchedule ?? byRule ?? byHook;
        }

        private void Finish(Status status)
        {
            if (status != Status.Ok)
            {
                TriremeException.ThrowFailure(status, TakeThrown());
            }

            Model.Changed?.Invoke();
            GC.KeepAlive(this);
        }

        private static unsafe int RunRule(IntPtr update, IntPtr userData)
        {
            // Called from native code: no exception may leave.
            try
            {
                var runner = (RuleRunner)GCHandle.FromIntPtr(userData).Target;
                return runner.Run((NativeUpdate*)update);
            }
            catch (Exception)
            {
                return 1;
            }
        }

        private sealed class RuleRunner
        {
            private readonly UpdateRule rule;

            public RuleRunner(UpdateRule rule)
            {
                this.rule = rule;
            }

            public ExceptionDispatchInfo Thrown { get; set; }

            public unsafe int Run(NativeUpdate* update)
            {
                try
                {
                    rule(new Update(update));
                    return 0;
                }
                catch (Exception exception)
                {
                    Thrown = ExceptionDispatchInfo.Capture(exception);
                    return 1;
                }
            }
        }
    }
}
