//! The rows of the table, by subject.

use super::{Metric, Section};

/// All metrics of this project.
pub const SECTIONS: &[Section] = &[
    Section { title: "Time", metrics: TIME },
    Section { title: "Rollout", metrics: ROLLOUT },
    Section { title: "Inference servers", metrics: SERVERS },
    Section { title: "Schedule and curriculum", metrics: SCHEDULE },
    Section { title: "Placement", metrics: PLACEMENT },
    Section { title: "Rewards", metrics: REWARDS },
    Section { title: "Training", metrics: TRAINING },
    Section { title: "Training-inference mismatch", metrics: MISMATCH },
    Section { title: "Length bias", metrics: BIAS },
    Section { title: "Ledger", metrics: LEDGER },
    Section { title: "Workers and snapshots", metrics: WORKERS },
    Section { title: "Validation", metrics: VALIDATION },
];

// One row is one or two lines; rustfmt would write each argument on a line of its own.

#[rustfmt::skip]
const TIME: &[Metric] = &[
    Metric::new("training/global_step", "{step}", "Number of the step, from 1."),
    Metric::new("timing_s/step", "s",
        "Time from the opening of the round to the end of the step, without validation. With staleness, steps overlap.").max().timed(),
    Metric::new("perf/time_per_step", "s",
        "Time from the end of the previous step to the end of this one, or `timing_s/step` if that is shorter.").timed(),
    Metric::new("timing_s/weight_sync", "s", "Part of `perf/time_per_step` before the engine has the new weights.").max().timed(),
    Metric::new("timing_s/rollout", "s",
        "Part of `perf/time_per_step` from the arrival of the weights to the end of the last response: requests, prefill and \
         decoding.").max().timed(),
    Metric::new("timing_s/reward_exposed", "s",
        "Part of `perf/time_per_step` from the end of the last response to the last score of a trained response. Only scoring holds up \
         the step in it.").max().timed(),
    Metric::new("timing_s/training_exposed", "s",
        "Part of `perf/time_per_step` from the last score of a trained response to the end of the step: training that overlaps with \
         nothing else.").max().timed(),
    Metric::new("timing_s/gen", "s", "Time from the start of the first response to the end of the last one.").max().timed(),
    Metric::new("timing_s/inference", "s",
        "Busy time of the trainer for reference log-probabilities and values; absent if it computed none.").max().timed(),
    Metric::new("timing_s/gradient", "s", "Busy time of the trainer for gradients.").max().timed(),
    Metric::new("timing_s/reduce", "s",
        "Time from the last gradient of a group until every replica has the sum of the gradients.").max().timed(),
    Metric::new("timing_s/update", "s", "Busy time of the trainer for the update of the weights and their publication.").max().timed(),
    Metric::new("timing_s/testing", "s", "Time of the validation.").max().timed(),
    Metric::new("trainer/waiting_ratio", "1",
        "Share of `perf/time_per_step` in which the trainer was idle: without inference, gradients and update.").timed(),
    Metric::new("trainer/threads", "{thread}",
        "Maximum number of threads that the trainer used in the step; reported once a device has trained.").timed(),
    Metric::new("perf/total_num_tokens", "{token}", "Tokens of the trained responses and their prompts."),
    Metric::new("perf/throughput", "{token}/s", "`perf/total_num_tokens` per second of `perf/time_per_step`.").timed(),
    Metric::new("perf/mfu/actor", "1",
        "Simulated runs: floating-point operations of the training divided by what its devices could do in the time.").timed(),
    Metric::new("perf/training_devices", "{device}", "Simulated runs: mean number of devices that trained.").timed(),
    Metric::new("operator/<operator>/{rows_in,rows_out}", "{row}",
        "Rows that an operator of the first worker received and emitted since the previous report.").timed(),
    Metric::new("operator/<operator>/busy_s", "s", "Busy time of an operator of the first worker since the previous report.").timed(),
];

#[rustfmt::skip]
const ROLLOUT: &[Metric] = &[
    Metric::new("rollout/launched_responses", "{response}",
        "Launched responses that ended in the step, including those that were aborted or dropped."),
    Metric::new("rollout/aborted_responses", "{response}", "Responses that were aborted."),
    Metric::new("rollout/paused_responses", "{response}", "Responses that were paused, to be continued in a later step."),
    Metric::new("rollout/launched_tokens", "{token}",
        "Tokens sampled in the step, including those of aborted responses. Tokens from before a pause are not counted again."),
    Metric::new("rollout/discarded_tokens", "{token}", "Tokens of responses that are neither trained on nor kept for a later step."),
    Metric::new("rollout/tokens_per_s", "{token}/s", "`rollout/launched_tokens` per second of `timing_s/gen`.").timed(),
    Metric::new("rollout/bubble_ratio", "1",
        "Share of the engine's slots that were idle during `timing_s/gen`, with as many slots as responses ran at once \
         (SortedRL, equation 4).").timed(),
    Metric::new("rollout/idle_ratio", "1",
        "Share of `timing_s/gen` in which an instance of the engine ran no response, as a mean over the instances that ran one.").timed(),
    Metric::new("rollout/preemptions", "{preemption}", "Times that a response was preempted for lack of KV cache.").timed(),
    Metric::new("rollout/load_s", "s",
        "Time that the engine takes to load new weights on all instances; absent for engines that do not report it.").max().timed(),
    Metric::new("rollout/guest_slowdown", "1",
        "With a colocated judge: (time of the iterations with actor work, including the judge's turns) / (the same without those turns) - 1, \
         over all instances.").timed(),
    Metric::new("rollout/guest_tokens", "{token}",
        "Tokens that a colocated judge decoded or prefilled on rollout instances, including those while the actor was idle.").timed(),
    Metric::new("profile/drift/max_ratio", "1",
        "With a profile: maximum ratio between the measured and the profiled time of a cell, in either direction, as a moving mean over \
         steps.").timed(),
    Metric::new("profile/drifted_cells", "{cell}",
        "With a profile: cells that drifted and were replaced by measured values in the step.").timed(),
    Metric::new("prompt_length/{mean,max,min}", "{token}", "Length of the prompts of the trained responses."),
    Metric::new("response_length/{mean,max,min}", "{token}", "Length of the trained responses."),
    Metric::new("response_length/clip_ratio", "1", "Share of the trained responses that ended at the maximum length."),
    Metric::new("response/aborted_ratio", "1", "`rollout/aborted_responses` divided by `rollout/launched_responses`."),
];

#[rustfmt::skip]
const SERVERS: &[Metric] = &[
    Metric::new("rollout/canary_kl", "1",
        "Mean of `exp(d) - d - 1` over the tokens that a server and this program both score after a delivery of weights, where `d` is this \
         program's log-probability minus the server's; maximum over servers.").max().timed(),
    Metric::new("rollout/canary_max", "1",
        "Maximum absolute difference of the log-probabilities that `rollout/canary_kl` compares, in nats.").max().timed(),
    Metric::new("rollout/canary_reloads", "{delivery}", "Deliveries that were repeated because the canary failed.").sum().timed(),
    Metric::new("rollout/moved_responses", "{response}",
        "Responses that were continued on another server or started again after a fault.").sum().timed(),
    Metric::new("rollout/server_discarded_tokens", "{token}",
        "Tokens of servers that were discarded, because their policy version was uncertain or their server had failed.").sum().timed(),
    Metric::new("rollout/server_errors", "{call}", "Calls of servers that failed.").sum().timed(),
    Metric::new("rollout/server_restarts", "{restart}",
        "Times that a server of `rollout.serve` ended and was started again.").sum().timed(),
    Metric::new("rollout/servers_lost", "{server}", "Times that a server left the rotation.").sum().timed(),
    Metric::new("rollout/servers_ready", "{server}", "Servers in rotation at the end of the step.").timed(),
    Metric::new("timing_s/weight_sync/{write,pause,load,resume,canary}", "s",
        "Time of a phase of the delivery of weights to servers; maximum over servers.").max().timed(),
];

#[rustfmt::skip]
const SCHEDULE: &[Metric] = &[
    Metric::new("schedule/launched_prompts", "{prompt}", "Prompts that were launched in the round."),
    Metric::new("schedule/admitted_prompts", "{prompt}", "Prompts whose groups are trained on."),
    Metric::new("schedule/deferred_prompts", "{prompt}", "Prompts that were deferred to a later round."),
    Metric::new("schedule/rejected_prompts", "{prompt}", "Prompts that were dropped by a rule of the schedule."),
    Metric::new("schedule/queue_length", "{prompt}", "Deferred prompts that wait when the round closes."),
    Metric::new("schedule/queue_age", "{step}", "Age of the prompt that has waited longest when the round closes."),
    Metric::new("curriculum/untried_prompts", "{prompt}", "Prompts drawn for the step with no known pass rate."),
    Metric::new("curriculum/in_bounds_prompts", "{prompt}", "Prompts drawn for the step with a pass rate within the bounds."),
    Metric::new("curriculum/explored_prompts", "{prompt}", "Prompts drawn for the step for exploration."),
    Metric::new("curriculum/skipped_easy_prompts", "{prompt}", "Prompts skipped as too easy."),
    Metric::new("curriculum/skipped_hard_prompts", "{prompt}", "Prompts skipped as too hard."),
    Metric::new("curriculum/known_prompts", "{row}", "Dataset rows with a known pass rate."),
];

#[rustfmt::skip]
const PLACEMENT: &[Metric] = &[
    Metric::new("placement/rollout_instances", "{instance}", "Instances that generate at the start of the round.").timed(),
    Metric::new("placement/tensor_parallel", "{device}",
        "Devices of each instance that `placement/rollout_instances` counts: the number of configured instances whose threads and KV \
         caches it joins.").timed(),
    Metric::new("placement/lent_instances", "{instance}",
        "Maximum number of instances lent to training at once, from the start of the round to the start of the next, or to the end of \
         the last step.").timed(),
    Metric::new("placement/lent_s", "s",
        "Time for which instances were lent, in the interval of `placement/lent_instances`, in seconds times instances.").timed(),
    Metric::new("placement/overlap_instances", "{instance}",
        "Maximum number of instances lent to training at once before all responses of the step have ended.").timed(),
    Metric::new("placement/overlap_s", "s",
        "Time for which instances were lent before all responses of the step had ended, in seconds times instances.").timed(),
];

#[rustfmt::skip]
const REWARDS: &[Metric] = &[
    Metric::new("reward/score/<data_source>", "1", "Mean score of the trained responses, by data source of the prompt."),
    Metric::new("reward/outcome/<value>", "{response}", "Trained responses with that `outcome` label."),
    Metric::new("reward/<name>", "1",
        "Mean of a component of the scores over the trained responses, or of the values that rewards reported with `Context::metric`."),
    Metric::new("reward/frac_zero_std", "1", "Share of the trained groups whose scores are all equal."),
    Metric::new("reward/mean_time_s", "s", "Mean time of a score.").timed(),
    Metric::new("reward/tail_time_s", "s", "Time from the end of the last trained response to the last score.").timed(),
    Metric::new("reward/exposed_time_s", "s", "Equal to `timing_s/reward_exposed`.").timed(),
    Metric::new("reward/queue_s", "s",
        "Mean time that calls waited for a slot and for the budget of a guard; absent without guards that limit calls.").timed(),
    Metric::new("reward/queue_max", "{response}", "Maximum number of responses at once whose scoring had not begun.").max().timed(),
    Metric::new("reward/in_flight_max", "{response}", "Maximum number of responses scored at once.").max().timed(),
    Metric::new("reward/cancelled", "{response}", "Responses that were dropped while they were scored.").sum().timed(),
    Metric::new("reward/skipped", "{response}",
        "Responses that ended by themselves and were dropped before their scoring began.").sum().timed(),
    Metric::new("reward/dropped_groups", "{group}", "Groups that were admitted but, because of an error, not trained on.").sum(),
    Metric::new("reward/errors/<kind>", "{error}",
        "Errors that did not end the run: `retryable`, `fatal`, `timeout`, `not_applicable`.").sum().timed(),
    Metric::new("reward/errors/<kind>/<reward>", "{error}", "Errors that did not end the run, by reward.").sum().timed(),
    Metric::new("reward/retries", "1", "1 if a guard repeated calls in the step; absent otherwise.").timed(),
    Metric::new("reward/cached", "1", "Share of the calls that the cache of a guard answered; absent without a cache.").timed(),
    Metric::new("reward/judge_unreadable", "1", "Share of the answers of a judge without a readable verdict.").timed(),
    Metric::new("reward/seconds", "s", "With the reward `code`: mean over the responses of the time of all executions.").timed(),
    Metric::new("reward/mean_limit_s", "s", "Mean time limit of the test cases that were executed.").timed(),
    Metric::new("reward/limit_kills", "{execution}", "Executions that reached their limit.").timed(),
    Metric::new("reward/audited_kills", "{execution}", "Executions that were continued past their limit as an audit.").timed(),
    Metric::new("reward/wrong_kills", "{execution}", "Audited executions that were correct.").timed(),
    Metric::new("reward/wrong_kill_rate", "1", "Share of the audited executions that were correct, over the run so far.").timed(),
];

#[rustfmt::skip]
const TRAINING: &[Metric] = &[
    Metric::new("critic/score/{mean,max,min}", "1", "Scores of the trained responses."),
    Metric::new("critic/rewards/mean", "1", "Rewards of the trained responses: scores, less the KL penalty if there is one."),
    Metric::new("critic/rewards/max", "1", "Maximum of the rewards of the trained responses.").max(),
    Metric::new("critic/rewards/min", "1", "Minimum of the rewards of the trained responses.").min(),
    Metric::new("critic/advantages/{mean,max,min}", "1", "Advantages of the trained tokens."),
    Metric::new("critic/values/{mean,max,min}", "1", "With a critic: its predictions before the update."),
    Metric::new("critic/returns/{mean,max,min}", "1", "With a critic: returns of the trained tokens."),
    Metric::new("critic/vf_explained_var", "1", "With a critic: explained variance of the returns."),
    Metric::new("critic/vf_loss", "1", "Value loss."),
    Metric::new("critic/vf_clipfrac", "1", "Share of the tokens whose value loss is clipped."),
    Metric::new("critic/vpred_mean", "1", "Mean prediction of the critic in the update."),
    Metric::new("critic/grad_norm", "1", "L2 norm of the critic's gradient before clipping."),
    Metric::new("critic/lr", "1", "Learning rate of the critic."),
    Metric::new("actor/loss", "1", "Loss: policy loss with the terms of KL divergence and entropy."),
    Metric::new("actor/pg_loss", "1", "Policy loss."),
    Metric::new("actor/pg_clipfrac", "1", "Share of the tokens whose probability ratio is clipped; `geo_mean`: with a positive advantage."),
    Metric::new("actor/pg_clipfrac_lower", "1",
        "Share of the tokens whose loss `clip_ratio_c` limits; `geo_mean`: clipped tokens with a negative advantage."),
    Metric::new("actor/ppo_kl", "1", "Mean of the old minus the new log-probability of a token."),
    Metric::new("actor/kl_loss", "1", "KL divergence from the reference policy, as a term of the loss."),
    Metric::new("actor/kl_coef", "1", "Coefficient of `actor/kl_loss`."),
    Metric::new("actor/entropy", "1", "Entropy of the policy, aggregated like the loss."),
    Metric::new("actor/grad_norm", "1", "L2 norm of the gradient before clipping. The mean if the step has several updates."),
    Metric::new("actor/lr", "1", "Learning rate."),
    Metric::new("actor/updates", "{update}", "Updates of the policy in the step, if the recipe sets several."),
    Metric::new("actor/reward_kl_penalty", "1", "Mean KL divergence that is subtracted from rewards."),
    Metric::new("actor/reward_kl_penalty_coeff", "1", "Coefficient of the KL penalty that is subtracted from rewards."),
    Metric::new("training/off_policy/token_staleness/{mean,max,min}", "{update}",
        "Updates between the policy that sampled a trained token and the policy that is trained."),
];

#[rustfmt::skip]
const MISMATCH: &[Metric] = &[
    Metric::new("rollout_corr/kl", "1",
        "Mean of the engine's minus the trainer's log-probability of a token: divergence of the engine's from the trainer's policy (k1)."),
    Metric::new("rollout_corr/k3_kl", "1",
        "Divergence of the engine's from the trainer's policy as the mean of `exp(d) - d - 1` (k3), where `d` is the trainer's minus the \
         engine's \
         log-probability of a token, within 20."),
    Metric::new("rollout_corr/training_ppl", "1", "Perplexity of the trainer on a response, mean over responses."),
    Metric::new("rollout_corr/rollout_ppl", "1", "Perplexity of the engine on a response, mean over responses."),
    Metric::new("rollout_corr/log_ppl_diff", "1",
        "Logarithm of the trainer's perplexity of a response minus that of the engine's, mean over responses."),
    Metric::new("rollout_corr/log_ppl_abs_diff", "1",
        "Mean over responses of the absolute difference of the logarithms of the two perplexities."),
    Metric::new("rollout_corr/ppl_ratio", "1", "Perplexity of the trainer divided by that of the engine, mean over responses."),
    Metric::new("rollout_corr/chi2_token", "1",
        "Mean square of the ratio of the trainer's to the engine's probability of a token, minus 1."),
    Metric::new("rollout_corr/chi2_seq", "1",
        "Mean square of the ratio of the trainer's to the engine's probability of a whole response, minus 1."),
    Metric::new("rollout_corr/rollout_is_ratio_fraction_high", "1",
        "Share of the importance weights above `rollout_is_threshold`, which limits them or sets them to 0. Without `rollout_is`, the \
         share of \
         the tokens whose weight would be above 2."),
    Metric::new("rollout_corr/rollout_is_ratio_fraction_low", "1",
        "Share of the importance weights below the band, which sets them to 0, or below the inverse of a single bound. Without `rollout_is`, \
         the share of the tokens whose weight would be below 0.5."),
    Metric::new("rollout_corr/rollout_is_{mean,max}", "1",
        "With `rollout_is`: importance weights of tokens after the threshold, before they are divided by their mean."),
    Metric::new("rollout_corr/rollout_is_eff_sample_size", "1",
        "With `rollout_is`: effective sample size of the importance weights divided by the number of tokens, `(sum w)^2 / (n sum w^2)`."),
    Metric::new("rollout_corr/rollout_is_batch_norm_factor", "1",
        "With `rollout_is_batch_normalize`: mean by which the importance weights are divided."),
    Metric::new("rollout_corr/rollout_rs_masked_fraction", "1", "With `rollout_rs`: share of the tokens that are rejected."),
    Metric::new("rollout_corr/rollout_rs_seq_masked_fraction", "1",
        "With `rollout_rs`: share of the responses with at least one rejected token."),
    Metric::new("training/rollout_probs_diff_{mean,max,std}", "1",
        "Absolute difference of the probabilities that engine and trainer compute for a sampled token."),
    Metric::new("training/rollout_actor_probs_pearson_corr", "1",
        "Pearson correlation of the probabilities that engine and trainer compute for sampled tokens; absent if either is constant."),
];

#[rustfmt::skip]
const BIAS: &[Metric] = &[
    Metric::new("bias/policy_mean", "{token}", "Mean length of the policy's responses, estimated over the run so far."),
    Metric::new("bias/policy_mean_low", "{token}", "Lower bound of `bias/policy_mean`; equal without surplus responses."),
    Metric::new("bias/mean_ratio", "1", "Mean trained length over the run so far, divided by `bias/policy_mean`."),
    Metric::new("bias/mean_ratio_high", "1", "Mean trained length over the run so far, divided by `bias/policy_mean_low`."),
    Metric::new("bias/step_mean_ratio", "1", "Mean trained length of the step, divided by `bias/policy_mean`."),
    Metric::new("bias/{p90,p99}_ratio", "1",
        "Quantile of the trained lengths, divided by the policy's; absent while aborts hide the policy's quantile."),
    Metric::new("bias/inclusion/<low>_<high>", "1", "Trained share divided by the policy's share of lengths in `[low, high)`."),
    Metric::new("bias/share_above_<n>/{trained,policy}", "1",
        "Share of responses longer than `n`: a quarter, half and three quarters of the cap; at the cap, share of responses that reach it."),
    Metric::new("bias/ess", "1", "Effective sample size divided by the number of trained responses, `(sum w)^2 / (n sum w^2)`."),
    Metric::new("bias/length_advantage", "1",
        "Covariance of score and length within a prompt, in score times tokens, of the policy."),
    Metric::new("bias/length_advantage_trained", "1", "Covariance of score and length within trained groups, in score times tokens."),
    Metric::new("bias/gradient_ratio", "1", "`bias/length_advantage_trained` divided by `bias/length_advantage`."),
    Metric::new("bias/gradient_ratio_high", "1",
        "`bias/length_advantage_trained` divided by the estimate for the policy if pairs that were cut by their own group had ended there."),
    Metric::new("bias/weighted_{mean_ratio,p90_ratio,p99_ratio,gradient_ratio}", "1",
        "The ratio with responses counted by weight; reported once a weight differs from 1."),
    Metric::new("bias/weighted_inclusion/<low>_<high>", "1",
        "The inclusion with responses counted by weight; reported once a weight differs from 1."),
];

#[rustfmt::skip]
const LEDGER: &[Metric] = &[
    Metric::new("ledger/rows", "{row}", "Dataset rows that were launched."),
    Metric::new("ledger/launches_per_row", "{response}", "Responses launched per row."),
    Metric::new("ledger/between_row_share", "1",
        "Share of the variance of whole lengths that lies between rows: the part that a history of rows can predict."),
    Metric::new("ledger/pass_rate", "1", "Mean score of the trained responses, over the run so far."),
    Metric::new("ledger/waiting_prompts", "{prompt}", "Deferred prompts."),
    Metric::new("ledger/mean_wait", "{step}", "Mean number of steps for which deferred prompts have waited."),
    Metric::new("ledger/longest_wait", "{step}", "Maximum number of steps for which a deferred prompt has waited."),
    Metric::new("ledger/anchored_cases", "{case}", "Test cases with a correct execution.").timed(),
    Metric::new("ledger/mean_anchor_s", "s",
        "Mean over the anchored test cases of the longest correct execution, which determines the time limit of the case.").timed(),
];

#[rustfmt::skip]
const WORKERS: &[Metric] = &[
    Metric::new("reduce/bytes", "By", "Bytes of gradients sent between workers, of all workers.").sum().timed(),
    Metric::new("reduce/takes", "{part}",
        "Number of parts in which shares were sent: one per worker, or more if a worker ran out of work early.").sum().timed(),
    Metric::new("snapshot/bytes", "By", "Size of a snapshot; exported over OTLP when it is complete, not in `metrics.jsonl`."),
    Metric::new("snapshot/parts", "{part}",
        "Number of parts of a snapshot; exported over OTLP when it is complete, not in `metrics.jsonl`."),
];

#[rustfmt::skip]
const VALIDATION: &[Metric] = &[
    Metric::new("val/score", "1", "Mean score of the sampled responses (`rollout.val_kwargs`)."),
    Metric::new("val/greedy_score", "1", "Mean score, decoded greedily."),
    Metric::new("val-core/<data_source>/acc/mean@<n>", "1",
        "Mean score of a data source over `rollout.val_kwargs.n` sampled responses to each prompt."),
    Metric::new("val-core/<data_source>/acc/greedy@1", "1", "Mean score of a data source, decoded greedily."),
    Metric::new("val/response_length/{mean,max}", "{token}", "Length of the sampled responses."),
    Metric::new("val/greedy_response_length/mean", "{token}", "Mean length of the greedy responses."),
    Metric::new("val/reward_errors", "{error}", "Errors of rewards that did not end the run."),
];
