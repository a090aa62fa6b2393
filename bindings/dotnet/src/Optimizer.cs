using System;
using System.Runtime.ExceptionServices;

namespace Trireme
{
    /// <summary>The update rule of a model, run on the part of it that this rank owns.</summary>
    public sealed partial class Optimizer : IDisposable
    {
        private readonly OptimizerHandle handle;
        private readonly RuleRunner runner;
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

            if (options.Rule == null)
            {
                throw new ArgumentNullException(nameof(options), "Rule is required.");
            }

            if (options.Rule is UserRule)
            {
                runner = new RuleRunner((UserRule)options.Rule);
            }

            bool held = false;
            try
            {
                using (var memory = new CallMemory())
                {
                    NativeOptimizerOptions native = options.Native(memory);
                    if (runner != null)
                    {
                        native.Rule = runner.Put(memory);
                    }

                    if (options.NormRanks != null)
                    {
                        options.NormRanks.Handle.DangerousAddRef(ref held);
                        native.NormRanks = options.NormRanks.Handle.DangerousGetHandle();
                    }

                    TriremeException.Check(NativeMethods.trireme_optimizer_create(
                        model.Handle, ref native, out handle));
                }
            }
            finally
            {
                if (held)
                {
                    options.NormRanks.Handle.DangerousRelease();
                }
            }

            handle.Parent = model;
            Model = model;
            model.Updater = this;
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
        /// The learning rate of the next step, by the schedule; without factors of groups. If the
        /// caller's own schedule throws, this throws the same exception.
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
                return;
            }

            ScheduleRunner asked = given.NewRunner();
            using (var memory = new CallMemory())
            {
                TriremeException.Check(
                    NativeMethods.trireme_optimizer_set_schedule(handle, given.Put(memory, asked)));
            }

            schedule = asked;
        }

        /// <summary>
        /// Sets ParameterGroup.RateFactor of one of OptimizerOptions.Groups, for the steps that follow. The same
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
        /// ParameterGroup.MaxNorm.
        /// </summary>
        public double GroupNorm(ulong group)
        {
            double norm;
            TriremeException.Check(
                NativeMethods.trireme_optimizer_get_group_norm(handle, group, out norm));
            return norm;
        }

        /// <summary>
        /// Ends a step: reduces, clips, updates. Collective. If the caller's own rule or hook threw
        /// on this rank, this throws the same exception; the other ranks get a CallbackException.
        /// </summary>
        public void Step()
        {
            using (var held = new HeldHandle(handle))
            {
                Finish(NativeMethods.trireme_optimizer_step(held.Address));
            }
        }

        /// <summary>
        /// Ends a step of several optimizers of this rank with one norm over all their models, such
        /// as those of experts and of the rest. All have the same max norm and loss scale, and skip
        /// a step together. None is named twice, and none is of an uneven model. Collective: all
        /// ranks that have the norm of one optimizer have that of the others, too. Throws as
        /// <see cref="Step"/>.
        /// </summary>
        public static unsafe void StepTogether(params Optimizer[] optimizers)
        {
            if (optimizers == null || Array.IndexOf(optimizers, null) >= 0)
            {
                throw new ArgumentNullException(nameof(optimizers));
            }

            // A room for the address of an empty array, which the library refuses by its count.
            var addresses = new IntPtr[Math.Max(optimizers.Length, 1)];
            var held = new HeldHandle[optimizers.Length];
            int count = 0;
            Status status;
            try
            {
                foreach (Optimizer each in optimizers)
                {
                    held[count] = new HeldHandle(each.handle);
                    addresses[count] = held[count].Address;
                    ++count;
                }

                fixed (IntPtr* first = addresses)
                {
                    status = NativeMethods.trireme_optimizer_step_together(
                        first, (ulong)optimizers.Length);
                }
            }
            finally
            {
                while (count > 0)
                {
                    held[--count].Dispose();
                }
            }

            ExceptionDispatchInfo thrown = null;
            foreach (Optimizer each in optimizers)
            {
                ExceptionDispatchInfo own = each.TakeThrown();
                thrown = thrown ?? own;
            }

            if (status != Status.Ok)
            {
                TriremeException.ThrowFailure(status, thrown);
            }

            foreach (Optimizer each in optimizers)
            {
                each.Model.Changed?.Invoke();
            }

            GC.KeepAlive(optimizers);
        }

        /// <summary>
        /// Follows the steps of ranks that still have data, until all ranks have come here: for a
        /// rank of an uneven model that has run out of data. All then hold the same parameters.
        /// Collective; throws as <see cref="Step"/>.
        /// </summary>
        /// <returns>How many steps were followed.</returns>
        public ulong Join()
        {
            ulong steps;
            using (var held = new HeldHandle(handle))
            {
                Finish(NativeMethods.trireme_optimizer_join(held.Address, out steps));
            }

            return steps;
        }

        /// <summary>
        /// Gives the state back, once no trainer needs it; waits for no peer. Only then may the
        /// model get another optimizer.
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
        /// The exception of a schedule, a rule or a hook of the caller; all of them forget theirs.
        /// </summary>
        internal ExceptionDispatchInfo TakeThrown()
        {
            ExceptionDispatchInfo bySchedule = TakeThrownBySchedule();
            ExceptionDispatchInfo byRule = runner?.TakeThrown();
            ExceptionDispatchInfo byHook = Model.Handle.Hook?.TakeThrown();
            return bySchedule ?? byRule ?? byHook;
        }

        /// <summary>The exception of the caller's schedule, which forgets it.</summary>
        internal ExceptionDispatchInfo TakeThrownBySchedule()
        {
            return schedule?.TakeThrown();
        }

        // Ends a step. No later one throws an exception of this one.
        private void Finish(Status status)
        {
            ExceptionDispatchInfo thrown = TakeThrown();
            if (status != Status.Ok)
            {
                TriremeException.ThrowFailure(status, thrown);
            }

            Model.Changed?.Invoke();
            GC.KeepAlive(this);
        }
    }
}
