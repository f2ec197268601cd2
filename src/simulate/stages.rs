//! The stages of a job: lengths, engine, rewards, trainer and placement, as its settings have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Nanos, VirtualClock};
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_operators::placement::{
    Colocated, Job as Devices, Options, Place, Planner, Rounds, Separate, StreamTrainer, Trigger,
    planner,
};
use rollpacker_operators::reward::Scoring;
use rollpacker_stages::cluster::{Calibration, Cost, TrainingLayout};
use rollpacker_stages::reward::Router;
use rollpacker_stages::reward::simulated::{
    self as rewards, SimulatedRewardsConfig, Workers, simulated_router,
};
use rollpacker_stages::rollout::Placement;
use rollpacker_stages::rollout::simulated::lengths::{
    Empirical, EmpiricalConfig, LengthModel, PopulationConfig, Recorded, Trace, TraceConfig,
    TraceRecord, TwoMode, TwoModeConfig, TwoModeDomain,
};
use rollpacker_stages::rollout::simulated::{
    Dispatch as EngineDispatch, SimulatedEngine, SimulatedEngineConfig,
};
use rollpacker_stages::train::simulated::SimulatedTrainer;
use serde::de::DeserializeOwned;
use toml::Value;

use super::cost::Predicted;
use super::job::{Job, read_value};
use super::raw::{self, Dispatch, Judge, PlannerRule, RawJob, Source, StreamRounds, Timeout};
use crate::recipe::RecipeError;
use crate::recipe::bounds::bound;

impl Job {
    /// How long responses are, drawn by `seed`.
    ///
    /// # Errors
    /// If a distribution is no distribution.
    pub fn lengths(&self, seed: u64) -> anyhow::Result<Arc<dyn LengthModel>> {
        let cap = self.raw.data.max_response_length;
        let population = self.population()?;
        let shares = self.raw.tasks.shares();
        Ok(match self.raw.lengths.source {
            Source::Paper => {
                let mut config = EmpiricalConfig::rollpacker();
                config.domains.retain(|name, _| shares.contains_key(name.as_str()));
                for (name, domain) in &mut config.domains {
                    domain.share = shares[name.as_str()];
                }
                Arc::new(Empirical::new(&config, &population, seed, cap)?)
            }
            Source::Empirical => {
                let domains = self.domains(&shares, None)?;
                Arc::new(Empirical::new(&EmpiricalConfig { domains }, &population, seed, cap)?)
            }
            Source::TwoMode => {
                let domains = self.domains(&shares, Some(TwoModeDomain::default()))?;
                Arc::new(TwoMode::new(&TwoModeConfig { domains }, &population, seed, cap)?)
            }
            Source::Trace => Arc::new(self.recorded(population, seed)?),
        })
    }

    fn population(&self) -> Result<PopulationConfig, RecipeError> {
        let table = self.raw.lengths.population.clone();
        table.map_or_else(
            || Ok(PopulationConfig::default()),
            |table| read_value("lengths.population", Value::Table(table)),
        )
    }

    /// The distribution of each kind of task that has a share.
    fn domains<D: DeserializeOwned>(
        &self,
        shares: &BTreeMap<&'static str, f64>,
        otherwise: Option<D>,
    ) -> Result<BTreeMap<String, D>, RecipeError>
    where
        D: Clone,
    {
        let tables = &self.raw.lengths.domains;
        if let Some(name) = tables.keys().find(|name| !shares.contains_key(name.as_str())) {
            let expected = "tasks that have a share: math, code, judge";
            return Err(bound("lengths.domains", expected, format!("`{name}`")));
        }
        let domain = |(&name, &share): (&&'static str, &f64)| {
            let key = format!("lengths.domains.{name}");
            let domain = match (tables.get(name), &otherwise) {
                (Some(table), _) if table.contains_key("share") => {
                    let reason = format!("expected nothing, the share is tasks.{name}");
                    return Err(RecipeError::Type { key: format!("{key}.share"), reason });
                }
                (Some(table), _) => {
                    let mut table = table.clone();
                    table.insert("share".to_owned(), Value::Float(share));
                    read_value(&key, Value::Table(table))?
                }
                (None, Some(otherwise)) => otherwise.clone(),
                (None, None) => {
                    return Err(bound("lengths.domains", format!("a table {name}"), "none"));
                }
            };
            Ok((name.to_owned(), domain))
        };
        shares.iter().map(domain).collect()
    }

    fn recorded(&self, population: PopulationConfig, seed: u64) -> anyhow::Result<Trace> {
        let recorded = self.trace.as_ref().expect("invariant: lengths of a trace have one");
        let records = recorded.uncensored(seed).into_iter().map(|row| TraceRecord {
            prompt: row.prompt.map(|prompt| prompt.to_string()),
            prompt_length: None,
            response_length: row.tokens,
        });
        let config = TraceConfig {
            domain: self.raw.tasks.largest().to_owned(),
            population,
            seed,
            cap: self.raw.data.max_response_length,
        };
        // Steps of a run folder count from 1.
        let replayed = recorded.rows.iter().filter_map(|row| {
            let step = Step(row.step?.checked_sub(1)?);
            let id = SampleId { step, prompt: PromptId(row.prompt?), sample: row.sample? };
            Some((id, Recorded { response_length: row.tokens, whole: row.whole }))
        });
        Ok(Trace::new(records, &config)?.replaying(replayed))
    }

    fn calibration(&self) -> Calibration {
        let otherwise = Calibration::default();
        let memory_share = self.raw.rollout.gpu_memory_utilization;
        Calibration { memory_share: memory_share.unwrap_or(otherwise.memory_share), ..otherwise }
    }

    /// What work takes on its cluster.
    #[must_use]
    pub fn cost(&self) -> Cost {
        Cost::new(self.hardware.clone(), self.model.clone(), self.calibration())
    }

    fn layout(&self) -> TrainingLayout {
        let raw::Training { tensor_parallel, pipeline_parallel, context_parallel } =
            self.raw.training;
        TrainingLayout { tensor_parallel, pipeline: pipeline_parallel, context: context_parallel }
    }

    fn rollout(&self) -> Placement {
        let tensor_parallel = self.raw.rollout.tensor_parallel;
        Placement { instances: self.rollout_gpus() / tensor_parallel, tensor_parallel }
    }

    /// The engine.
    ///
    /// # Errors
    /// If the model does not fit its instances.
    pub fn engine(
        &self,
        lengths: Arc<dyn LengthModel>,
        clock: VirtualClock,
    ) -> anyhow::Result<SimulatedEngine> {
        let judged = self.raw.tasks.judge > 0.0 && self.judge == Judge::Colocated;
        let config = SimulatedEngineConfig {
            max_running: self.raw.rollout.max_num_seqs,
            dispatch: match self.dispatch {
                Dispatch::RoundRobin => EngineDispatch::RoundRobin,
                Dispatch::PromptChunks => EngineDispatch::PromptChunks,
            },
            report_interval: Nanos::from_secs_f64(self.raw.rollout.report_interval_s),
            slowdown: if judged { self.calibration().judge_slowdown } else { 1.0 },
            ..SimulatedEngineConfig::new(self.rollout())
        };
        Ok(SimulatedEngine::new(config, self.cost(), lengths, clock)?)
    }

    /// The trainer.
    #[must_use]
    pub fn trainer(&self, lengths: Arc<dyn LengthModel>, clock: VirtualClock) -> SimulatedTrainer {
        SimulatedTrainer::new(self.cost(), self.layout(), self.training_gpus, lengths, clock)
    }

    /// The rewards, drawn by `seed`.
    #[must_use]
    pub fn rewards(&self, seed: u64, lengths: Arc<dyn LengthModel>, clock: &VirtualClock) -> Router {
        let RawJob { tasks, cluster, rollout, schedule, .. } = &self.raw;
        let seconds = tasks.timeout_s;
        let slots = cluster.gpus as usize * SLOTS_PER_GPU;
        let config = SimulatedRewardsConfig {
            seed,
            slots: tasks.sandbox_slots.unwrap_or(slots),
            workers: if schedule.name == "sync" { Workers::InTurn } else { Workers::FirstFree },
            timeout: match self.timeout {
                Timeout::Fixed => rewards::Timeout::Fixed { seconds },
                Timeout::Adaptive => rewards::Timeout::Adaptive { seconds },
            },
            judge: match self.judge {
                Judge::Dedicated => rewards::Judge::Dedicated,
                Judge::Colocated => rewards::Judge::Colocated,
            },
            after_rollout: self.scoring == Scoring::AfterRollout,
            report_interval: Nanos::from_secs_f64(rollout.report_interval_s),
        };
        simulated_router(&config, &self.calibration(), lengths, clock)
    }

    /// What generates and what trains, when.
    ///
    /// # Errors
    /// If the devices do not go together.
    pub fn placement(&self) -> anyhow::Result<Box<dyn Place>> {
        let rollout = self.rollout();
        Ok(match self.placement {
            raw::Placement::Colocated if self.raw.planner.rule == PlannerRule::Fixed => {
                Box::new(Colocated::new(rollout))
            }
            raw::Placement::Separate => Box::new(Separate::new(rollout, self.training_gpus)),
            raw::Placement::Colocated => {
                Box::new(self.stream_trainer(Trigger::Never)?)
            }
            raw::Placement::Stream => Box::new(self.stream_trainer(self.trigger())?),
        })
    }

    fn stream_trainer(&self, trigger: Trigger) -> anyhow::Result<StreamTrainer<Predicted>> {
        let raw::Stream { rounds, keep, headroom, consolidate, .. } = self.raw.stream;
        let training = &self.raw.training;
        let options = Options {
            rounds: match rounds {
                StreamRounds::Long => Rounds::Long,
                StreamRounds::All => Rounds::All,
            },
            trigger,
            keep,
            headroom,
            consolidate,
        };
        let devices = Devices {
            devices: self.raw.cluster.gpus,
            devices_per_server: self.hardware.devices_per_server,
            training_replica: training.tensor_parallel
                * training.pipeline_parallel
                * training.context_parallel,
            response_length: self.raw.data.max_response_length,
        };
        let rule = match self.raw.planner.rule {
            PlannerRule::Fixed => planner::Rule::Fixed,
            PlannerRule::Paper => planner::Rule::paper(),
            PlannerRule::Predictive => planner::Rule::Predictive,
        };
        let planner = Planner::new(rule, devices, self.raw.rollout.tensor_parallel)?;
        let predicted = Predicted { cost: self.cost(), layout: self.layout() };
        Ok(StreamTrainer::new(options, planner, predicted)?)
    }

    fn trigger(&self) -> Trigger {
        let raw::Stream { trigger, from, to, every, .. } = self.raw.stream;
        match trigger {
            raw::Trigger::Never => Trigger::Never,
            raw::Trigger::Fixed => Trigger::Fixed { share: from },
            raw::Trigger::Adaptive => Trigger::Adaptive { from, to, every },
            raw::Trigger::Predicted => Trigger::Predicted { from, every },
        }
    }
}

/// CPU slots of the sandbox for each GPU, where a job does not say.
const SLOTS_PER_GPU: usize = 8;

impl raw::Tasks {
    /// The kinds of tasks that have a share.
    fn shares(&self) -> BTreeMap<&'static str, f64> {
        let shares = [("math", self.math), ("code", self.code), ("judge", self.judge)];
        shares.into_iter().filter(|(_, share)| *share > 0.0).collect()
    }

    /// The kind with the largest share, math among equals.
    fn largest(&self) -> &'static str {
        let shares = [("judge", self.judge), ("code", self.code), ("math", self.math)];
        let largest = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        largest.expect("invariant: there are three").0
    }
}
