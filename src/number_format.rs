//! Formats numbers for columns of a table.

/// Formats a number for a column of eight characters. The absolute value determines the form:
/// - 0: `0`
/// - below 0.001, and from a million: two significant digits and an exponent
/// - below 100: three decimals
/// - below a million: an integer
/// - not finite: `NaN`, `inf` or `-inf`
pub(crate) fn format_number(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".to_owned(),
        _ if size < 0.001 => format!("{value:.1e}"),
        _ if size < 100.0 => format!("{value:.3}"),
        _ if size < 1e6 => format!("{value:.0}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_column() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.250"),
            (-12.5, "-12.500"),
            (12345.0, "12345"),
            (2.5e-7, "2.5e-7"),
            (-3.2e9, "-3.2e9"),
        ] {
            assert_eq!(format_number(value), text);
            assert!(format_number(value).len() <= 8);
        }
    }
}
