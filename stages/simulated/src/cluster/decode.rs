//! Decoding costs of an engine instance.

/// The decoding costs of an engine instance. Each iteration samples one token for each running response.
///
/// The host launches the kernels of the iteration layer by layer, which takes `launch`. Meanwhile the devices compute: `device(n)` for the
/// weights and the all-reduces, and `per_token * s` to read the KV cache. The slower of the two determines the time. Sampling and
/// scheduling on the host add `host(n)`. With `n` running responses that hold `s` tokens, an iteration takes
///
/// ```text
/// host(n) + max(launch, device(n) + per_token * s)
/// ```
///
/// seconds and leaves `s + n` tokens. The time of the iterations between two events therefore has a closed form, and a simulation jumps
/// from event to event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Seconds on the host, independent of the batch.
    pub(super) overhead: f64,
    /// Seconds on the host for each running response.
    pub(super) per_response: f64,
    /// Seconds to launch the kernels of an iteration.
    pub(super) launch: f64,
    /// Latency of the all-reduces of an iteration, in seconds.
    pub(super) latency: f64,
    /// Transfer time of the all-reduces for each running response, in seconds.
    pub(super) transfer: f64,
    /// Seconds to read the weights.
    pub(super) weights: f64,
    /// Seconds of arithmetic for each running response. The arithmetic overlaps with reading the weights.
    pub(super) arithmetic: f64,
    /// Seconds to read one token of the KV cache.
    pub(super) per_token: f64,
}

impl Decode {
    /// Returns the costs multiplied by `factor`, for an instance that shares its devices with other work.
    #[must_use]
    pub fn slowed(self, factor: f64) -> Self {
        Self {
            overhead: self.overhead * factor,
            per_response: self.per_response * factor,
            launch: self.launch * factor,
            latency: self.latency * factor,
            transfer: self.transfer * factor,
            weights: self.weights * factor,
            arithmetic: self.arithmetic * factor,
            per_token: self.per_token * factor,
        }
    }

    /// Returns the seconds of one iteration of `running` responses that hold `tokens` tokens.
    #[must_use]
    pub fn iteration(&self, running: u32, tokens: u64) -> f64 {
        self.iterations(1, running, tokens)
    }

    /// Returns the seconds of `count` consecutive iterations of `running` responses that hold `tokens` tokens at the start.
    ///
    /// The KV cache grows by `running` tokens per iteration. As long as the launch of the kernels takes longer than the work of the
    /// devices, each iteration takes the same time. From then on, the time of an iteration grows linearly, so that the sum is an arithmetic
    /// series.
    #[must_use]
    pub fn iterations(&self, count: u64, running: u32, tokens: u64) -> f64 {
        let launched = self.launch_bound(running, tokens).min(count);
        let read = (count - launched) as f64;
        let first = tokens as f64 + launched as f64 * f64::from(running);
        let grown = f64::from(running) * read * (read - 1.0) * 0.5;
        count as f64 * self.host(running)
            + launched as f64 * self.launch
            + read * self.device(running)
            + self.per_token * (read * first + grown)
    }

    /// Returns the number of iterations that end within `seconds`: the inverse of [`iterations`](Self::iterations), rounded down.
    #[must_use]
    pub fn within(&self, seconds: f64, running: u32, tokens: u64) -> u64 {
        let seconds = seconds.max(0.0);
        let launched = self.launch_bound(running, tokens);
        let fixed = self.host(running) + self.launch;
        let whole = (seconds / fixed) as u64;
        let mut count = if whole < launched {
            whole
        } else {
            let first = tokens + launched * u64::from(running);
            launched + self.reading_within(seconds - launched as f64 * fixed, running, first)
        };
        // Rounding in the division and the square root can miss the result by an iteration in either direction.
        while self.iterations(count, running, tokens) > seconds && count > 0 {
            count -= 1;
        }
        while self.iterations(count + 1, running, tokens) <= seconds {
            count += 1;
        }
        count
    }

    /// Returns the number of iterations that end within `seconds` if the devices determine the time of each iteration.
    fn reading_within(&self, seconds: f64, running: u32, tokens: u64) -> u64 {
        // Solves `per_token * n / 2 * k^2 + (host(n) + device(n) + per_token * (s - n / 2)) * k = seconds` for `k`, the number of
        // iterations; `n` is `running` and `s` is `tokens`.
        let half = self.per_token * f64::from(running) * 0.5;
        let base = self.host(running) + self.device(running);
        let linear = base + self.per_token * tokens as f64 - half;
        let seconds = seconds.max(0.0);
        let root = (linear * linear + 4.0 * half * seconds).sqrt();
        // This form of the root has no cancellation if the quadratic term is small, and is defined if it is 0.
        (2.0 * seconds / (linear + root)) as u64
    }

    /// Returns the number of iterations, starting at `tokens` tokens, in which the launch of the kernels takes longer than the work of the
    /// devices. In all later iterations, the work of the devices takes longer.
    fn launch_bound(&self, running: u32, tokens: u64) -> u64 {
        let hidden = (self.launch - self.device(running)) / self.per_token - tokens as f64;
        if hidden <= 0.0 {
            return 0;
        }
        (hidden / f64::from(running.max(1))).ceil() as u64
    }

    fn host(&self, running: u32) -> f64 {
        self.overhead + self.per_response * f64::from(running)
    }

    /// Returns the seconds of an iteration on the devices, without reading the KV cache.
    fn device(&self, running: u32) -> f64 {
        let running = f64::from(running);
        self.latency + self.transfer * running + self.weights.max(self.arithmetic * running)
    }
}
