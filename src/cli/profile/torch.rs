//! Measures the torch engine of a recipe.

use std::path::Path;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_files::Inputs;
use rollpacker_stages::rollout::profile::grid::{MIN_SEQUENCE_TOKENS, doublings};
use rollpacker_stages::rollout::profile::{Grid, Row, measure};
use rollpacker_torch::model::{Decoder, resolve_device};
use rollpacker_torch::rollout::profile::TorchMeasure;
use tch::Device;

use crate::App;
use crate::memory::{Estimate, profiling_parts};
use crate::placements::PlannerOptions;
use crate::recipe::{Recipe, RecipeError};
use crate::session::{check_device, engine_config, initial_model};
use crate::simulate::profile::Profiled;

/// A started torch engine, and the points at which to measure it.
pub(super) struct TorchSubject {
    inputs: Inputs,
    engine: TorchMeasure,
    /// The grids, one per number of devices of an instance, in ascending order.
    grids: Vec<Grid>,
    clock: Arc<WallClock>,
}

impl TorchSubject {
    pub(super) fn open(config: &Path, overrides: &[String], app: &App) -> anyhow::Result<Self> {
        let recipe = Recipe::read_with(config, overrides, &app.schedules, &app.placements)?;
        app.engines
            .chosen(&recipe.choices)?
            .require_torch_if(true, "`rollpacker profile` measures it")?;
        let model = initial_model(&recipe)?;
        let device = resolve_device(recipe.run.device).map_err(RecipeError::from)?;
        if recipe.planner().is_some() {
            check_device(&recipe, device)?;
        }
        if device == Device::Cpu {
            let mut estimate = Estimate::default();
            estimate.extend(profiling_parts(&recipe, &model));
            estimate.check()?;
        }
        let clock = Arc::new(WallClock::start());
        let config = engine_config(&recipe);
        let decoder = Decoder::load(&recipe.model.path, device)?;
        let engine = TorchMeasure::start(config, decoder, clock.clone())?;
        Ok(Self { inputs: recipe.profiling_inputs(), engine, grids: grids(&recipe), clock })
    }

    /// Returns the input files that the recipe names, except for the profile, which this command measures again.
    pub(super) fn inputs(&self) -> Inputs {
        self.inputs.clone()
    }

    pub(super) fn measure(mut self, budget: f64) -> anyhow::Result<Profiled> {
        let begun = self.clock.now();
        let budget = Nanos::from_secs_f64(budget / self.grids.len().max(1) as f64);
        let mut rows = Vec::new();
        for grid in &self.grids {
            rows.extend(measure(grid, &mut self.engine, &*self.clock, budget)?);
        }
        rows.sort_by_key(Row::point);
        let seconds = self.clock.now().since(begun).as_secs_f64();
        let points = self.grids.iter().map(|grid| grid.points().len()).sum();
        Ok(Profiled { rows, points, seconds })
    }
}

/// Returns a grid for each number of devices that the placement of the recipe may give an instance.
fn grids(recipe: &Recipe) -> Vec<Grid> {
    match recipe.planner() {
        Some(_) => PlannerOptions::parallelisms(recipe.rollout.instances)
            .map(|size| grid(recipe, size))
            .collect(),
        None => vec![grid(recipe, 1)],
    }
}

/// Returns the grid for instances of `tensor_parallel` devices. It ends at the largest batch and the longest sequences that the recipe
/// allows.
fn grid(recipe: &Recipe, tensor_parallel: u32) -> Grid {
    let (data, rollout) = (&recipe.data, &recipe.rollout);
    let tokens = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
    let longest_prompt = tokens(data.max_prompt_length);
    let longest = longest_prompt.saturating_add(data.max_response_length);
    Grid {
        instances: doublings(1, rollout.instances / tensor_parallel),
        tensor_parallel,
        batch_sizes: doublings(1, tokens(rollout.max_num_seqs)),
        prompt_lengths: doublings(MIN_SEQUENCE_TOKENS, longest_prompt),
        context_lengths: doublings(MIN_SEQUENCE_TOKENS, longest),
        kv_cache_tokens: rollout.kv_cache_tokens.saturating_mul(tensor_parallel as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planner_needs_a_grid_for_each_number_of_devices() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recipe.toml");
        std::fs::write(&path, "").unwrap();
        let settings = ["placement.kind=planner", "rollout.instances=12"];
        let recipe = Recipe::read(&path, &settings.map(str::to_owned)).unwrap();
        let sizes = grids(&recipe).into_iter().map(|grid| {
            (grid.tensor_parallel, grid.instances.last().copied(), grid.kv_cache_tokens)
        });
        let sizes: Vec<_> = sizes.collect();
        assert_eq!(
            sizes,
            [(1, Some(12), 262_144), (2, Some(6), 2 * 262_144), (4, Some(3), 4 * 262_144)]
        );
    }

    #[test]
    fn the_grid_goes_up_to_what_the_recipe_allows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recipe.toml");
        std::fs::write(&path, "").unwrap();
        let settings = [
            "rollout.instances=3",
            "rollout.max_num_seqs=6",
            "data.max_prompt_length=40",
            "data.max_response_length=60",
        ];
        let recipe = Recipe::read(&path, &settings.map(str::to_owned)).unwrap();
        let expected = Grid {
            instances: vec![1, 2, 3],
            tensor_parallel: 1,
            batch_sizes: vec![1, 2, 4, 6],
            prompt_lengths: vec![16, 32, 40],
            context_lengths: vec![16, 32, 64, 100],
            kv_cache_tokens: 262_144,
        };
        assert_eq!(grids(&recipe), [expected]);
    }
}
