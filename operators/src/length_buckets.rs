//! Length buckets, two per doubling of the length.

/// Returns the bucket of a length. Bucket `b` is `[2^(b/2), 2^((b+1)/2))` tokens. Length 0 is in the bucket of length 1.
pub(crate) fn bucket(tokens: u32) -> u32 {
    let square = u64::from(tokens.max(1)).pow(2);
    square.ilog2()
}

/// Returns the lower end of a bucket, rounded up to whole tokens: the smallest length above 0 in the bucket, except for bucket 1, which
/// contains no length.
pub(crate) fn start(bucket: u32) -> u32 {
    let root = 2f64.powf(f64::from(bucket) / 2.0).ceil();
    root as u32
}

#[cfg(test)]
mod tests {
    use super::{bucket, start};

    #[test]
    fn start_is_the_lower_bound_of_a_bucket() {
        assert_eq!(
            (bucket(1), bucket(512), bucket(724), bucket(725), bucket(1024)),
            (0, 18, 18, 19, 20)
        );
        for tokens in 1..5000 {
            assert!(
                start(bucket(tokens)) <= tokens && tokens < start(bucket(tokens) + 1),
                "{tokens}"
            );
        }
    }
}
