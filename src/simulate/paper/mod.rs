//! Comparison of the papers' numbers with simulated numbers.
//!
//! A [`PaperCell`] is one number of a table or figure. The simulated value comes from runs of the jobs in `configs/sim` with overrides,
//! through the pipeline of `rollpacker simulate`; [`Reproduction::commands`] lists the commands. The constants of the model were fitted to
//! some of the cells; these show what the model can explain. The other cells were held out of the fit; they show what it predicts.

mod cell;
mod fig10_11;
mod fig12;
mod fig13;
mod fig14;
mod fig15;
mod fig16;
mod fig2b;
mod fig4;
mod fig7;
mod item;
mod jobs;
mod plan;
mod repository;
mod rollout_pipe;
mod runs;
mod sorted_rl;
mod table1;
mod table2;
mod tables34;

use std::num::NonZero;

use anyhow::ensure;

pub use cell::{ErrorMeasure, PaperCell, render};
use item::Item;
use plan::Plan;
pub use plan::PlanSize;

/// The source of RollPacker's numbers.
const ROLLPACKER: &str = "RollPacker (NSDI '26)";

/// The items in the order of the output, grouped by paper.
const ITEMS: &[fn(&mut Plan) -> Vec<Item>] = &[
    table1::items,
    table2::items,
    tables34::items,
    fig2b::items,
    fig4::items,
    fig7::items,
    fig10_11::items,
    fig12::items,
    fig13::items,
    fig14::items,
    fig15::items,
    fig16::items,
    repository::items,
    sorted_rl::items,
    rollout_pipe::items,
];

/// A selection of items with the jobs that they need.
pub struct Reproduction {
    plan: Plan,
    items: Vec<Item>,
}

impl Reproduction {
    /// Selects the items whose title contains one of `only`, or all items if `only` is empty. `overrides` are settings of every job,
    /// `key=value` each. `size` is the number of seeds and steps of each job.
    ///
    /// # Errors
    /// If an element of `only` is contained in no item's title.
    pub fn new(only: &[String], overrides: &[String], size: PlanSize) -> anyhow::Result<Self> {
        let mut plan = Plan::new(size, overrides.to_vec());
        let mut items: Vec<Item> = ITEMS.iter().flat_map(|items| items(&mut plan)).collect();
        let names = |items: &[Item]| items.iter().map(Item::title).collect::<Vec<_>>();
        let all = names(&items);
        for wanted in only {
            let expected = all.join(", ");
            ensure!(
                all.iter().any(|name| name.contains(wanted.as_str())),
                "--only {wanted}: expected a part of one of {expected}"
            );
        }
        let is_wanted = |item: &Item| {
            only.is_empty() || only.iter().any(|wanted| item.title().contains(wanted.as_str()))
        };
        items.retain(is_wanted);
        plan.keep(items.iter().flat_map(|item| item.jobs.iter().copied()));
        Ok(Self { plan, items })
    }

    /// Returns the number of runs; a job that several items need is run once.
    ///
    /// # Errors
    /// If a job is not valid.
    pub fn runs(&self) -> anyhow::Result<usize> {
        self.plan.runs()
    }

    /// Runs the jobs of all items on `threads` threads, calls `done` after each run, and returns the cells. The cells do not depend on the
    /// number of threads.
    ///
    /// # Errors
    /// If a job is not valid, a run fails, or a simulated value is not finite, for example because no step has the kind of round that the
    /// cell measures.
    pub fn run(
        &self,
        threads: NonZero<usize>,
        done: &(dyn Fn() + Sync),
    ) -> anyhow::Result<Vec<PaperCell>> {
        let runs = self.plan.run(threads, done)?;
        let cells: Vec<PaperCell> = self.items.iter().flat_map(|item| item.cells(&runs)).collect();
        for cell in &cells {
            let PaperCell { source, item, cell, ours, .. } = cell;
            ensure!(ours.is_finite(), "{source}, {item}, {cell}: expected a number, found {ours}");
        }
        Ok(cells)
    }

    /// Returns the title of each item, its setting in the paper, and the commands that run its jobs individually. The commands ignore
    /// [`PlanSize::steps`].
    #[must_use]
    pub fn commands(&self) -> Vec<(String, &'static str, Vec<String>)> {
        let of = |item: &Item| item.jobs.iter().map(|&job| self.plan.command(job)).collect();
        self.items.iter().map(|item| (item.title(), item.setting, of(item))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(only: &[&str], seeds: u64) -> usize {
        let only: Vec<String> = only.iter().map(|&item| item.to_owned()).collect();
        let size = PlanSize { seeds: NonZero::new(seeds).expect("some"), steps: None };
        Reproduction::new(&only, &[], size).expect("known").runs().expect("valid jobs")
    }

    #[test]
    fn a_job_that_several_items_need_is_run_once_a_seed() {
        // Three jobs, each with veRL and the four systems.
        assert_eq!(runs(&["Table 2"], 1), 15);
        // Table 2 already runs veRL and RollPacker, but not RLHFuse.
        assert_eq!(runs(&["Table 2", "Fig. 10"], 1), 18);
        assert_eq!(runs(&["Table 2", "Fig. 10"], 2), 36);
        // Fig. 16 has fewer steps than Table 2.
        assert_eq!(runs(&["Table 2", "Fig. 16"], 1), 15 + 6);
        assert!(runs(&[], 1) > 100);
    }

    #[test]
    fn every_item_lists_the_commands_of_its_jobs() {
        let size = PlanSize { seeds: NonZero::<u64>::MIN, steps: None };
        let commands = Reproduction::new(&[], &[], size).expect("all").commands();
        assert_eq!(commands.len(), 23);
        for (title, setting, commands) in commands {
            assert!(!commands.is_empty() && !setting.is_empty(), "{title}");
            let known = commands.iter().all(|line| line.contains("--config configs/sim/"));
            assert!(known, "{commands:?}");
        }
    }
}
