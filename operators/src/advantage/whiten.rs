//! Whitening: normalization over all tokens of a step.

/// Added to the variance, as in verl, so that equal numbers do not cause a division by 0.
const EPSILON: f64 = 1e-8;

/// Subtracts the mean of all numbers from each number, and divides each difference by the unbiased standard deviation, with [`EPSILON`]
/// added to the variance. A single number becomes 0.
pub(super) fn whiten(columns: &mut [Vec<f64>]) {
    let numbers = || columns.iter().flatten().copied();
    let count = numbers().count() as f64;
    if count == 0.0 {
        return;
    }
    let mean = numbers().sum::<f64>() / count;
    let squares: f64 = numbers().map(|number| (number - mean).powi(2)).sum();
    let deviation = if count > 1.0 { (squares / (count - 1.0) + EPSILON).sqrt() } else { 1.0 };
    for number in columns.iter_mut().flatten() {
        *number = (*number - mean) / deviation;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_columns_are_whitened_as_one_population() {
        let mut columns = [vec![1.0, 2.0], vec![], vec![6.0]];
        whiten(&mut columns);
        let deviation = 7f64.sqrt();
        let expect = [-2.0 / deviation, -1.0 / deviation, 3.0 / deviation];
        for (found, expect) in columns.iter().flatten().zip(expect) {
            assert!((found - expect).abs() < 1e-8, "{found}, expected {expect}");
        }
        let mut one = [vec![4.0]];
        whiten(&mut one);
        assert_eq!(one, [[0.0]]);
        whiten(&mut []);
    }
}
