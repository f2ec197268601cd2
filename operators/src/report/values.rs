//! Metrics of a critic.

use arrow_array::types::Float32Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_stages::train::Metrics;

use super::statistics::{ratio, spread};

/// Adds the mean, maximum and minimum of the critic's predictions and of the returns, and the explained variance of the returns. Adds
/// nothing if there are no predictions.
pub(super) fn values(metrics: &mut Metrics, groups: &[Batch]) {
    let tokens = |name| -> Vec<f64> {
        let columns = groups.iter().map(|batch| (batch, batch.lists::<Float32Type>(name)));
        let rows = columns
            .flat_map(|(batch, column)| (0..batch.num_rows()).flat_map(move |row| column.get(row)));
        rows.map(|&value| f64::from(value)).collect()
    };
    let (values, returns) = (tokens(column::VALUES), tokens(column::RETURNS));
    if values.is_empty() {
        return;
    }
    let errors: Vec<f64> = returns.iter().zip(&values).map(|(r, v)| r - v).collect();
    // verl uses the same constant; it avoids a division by 0 if all returns are equal.
    let explained = 1.0 - variance(&errors) / (variance(&returns) + 1e-5);
    metrics.insert("critic/vf_explained_var".to_owned(), explained);
    spread(metrics, "critic/values", values.into_iter());
    spread(metrics, "critic/returns", returns.into_iter());
}

/// Returns the unbiased variance; 0 for fewer than two numbers.
fn variance(numbers: &[f64]) -> f64 {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    ratio(squares, count - 1.0)
}
