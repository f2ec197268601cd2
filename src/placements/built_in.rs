//! The catalog of built-in placements.

use std::sync::Arc;

use rollpacker_stages::catalog::Catalog;

use super::live::{BuiltIn, Check, PlacementInputs};
use super::{fixed, planner, separate_pools, stream_trainer, time_sharing};

/// Returns the built-in placements.
pub(super) fn catalog() -> Catalog<Check> {
    let catalog = Catalog::new("placement");
    let catalog = with::<fixed::Fixed>(catalog);
    let catalog = with::<time_sharing::TimeSharing>(catalog);
    let catalog = with::<separate_pools::SeparatePools>(catalog);
    let catalog = with::<stream_trainer::StreamTrainer>(catalog);
    with::<planner::Planner>(catalog)
}

fn with<P: BuiltIn>(catalog: Catalog<Check>) -> Catalog<Check> {
    let read = |options: P| {
        Ok(Arc::new(move |recipe: &PlacementInputs<'_>| options.clone().check(recipe)) as Check)
    };
    catalog.described(P::NAME, P::ABOUT, read)
}
