//! How an engine instance decodes.

/// How an engine instance decodes: each iteration samples one token for each running response.
///
/// The devices read the weights and the KV cache while the host launches the kernels of the iteration one layer after the other, so the
/// slower of the two counts. Sampling and scheduling come on top. With `n` running responses that hold `s` tokens, an iteration takes
///
/// ```text
/// host(n) + max(launch, device(n) + a_token * s)
/// ```
///
/// seconds and leaves `s + n` tokens. The iterations between two events therefore have a closed form, and a simulation jumps from event
/// to event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Seconds of the host, whatever runs.
    pub(super) overhead: f64,
    /// Seconds of the host for each running response.
    pub(super) a_response: f64,
    /// Seconds to launch the kernels of an iteration.
    pub(super) launch: f64,
    /// Seconds that the all-reduces of an iteration take at least.
    pub(super) latency: f64,
    /// Seconds that the all-reduces take for each running response.
    pub(super) transfer: f64,
    /// Seconds to read the weights.
    pub(super) weights: f64,
    /// Seconds of arithmetic for each running response; hidden by the reading of the weights until it exceeds it.
    pub(super) arithmetic: f64,
    /// Seconds to read a token of KV cache.
    pub(super) a_token: f64,
}

impl Decode {
    /// Returns the same instance, `factor` times as slow: something else runs on its devices.
    #[must_use]
    pub fn slowed(self, factor: f64) -> Self {
        Self {
            overhead: self.overhead * factor,
            a_response: self.a_response * factor,
            launch: self.launch * factor,
            latency: self.latency * factor,
            transfer: self.transfer * factor,
            weights: self.weights * factor,
            arithmetic: self.arithmetic * factor,
            a_token: self.a_token * factor,
        }
    }

    /// Seconds of one iteration of `running` responses that hold `tokens` tokens.
    #[must_use]
    pub fn iteration(&self, running: u32, tokens: u64) -> f64 {
        self.iterations(1, running, tokens)
    }

    /// Seconds of `count` iterations on end.
    #[must_use]
    pub fn iterations(&self, count: u64, running: u32, tokens: u64) -> f64 {
        let launched = self.launch_bound(running, tokens).min(count);
        let read = (count - launched) as f64;
        let first = tokens as f64 + launched as f64 * f64::from(running);
        let grown = f64::from(running) * read * (read - 1.0) * 0.5;
        count as f64 * self.host(running)
            + launched as f64 * self.launch
            + read * self.device(running)
            + self.a_token * (read * first + grown)
    }

    /// How many iterations end within `seconds`: the inverse of [`iterations`](Self::iterations), rounded down.
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
        // Division and square root may err on either side of a whole iteration.
        while self.iterations(count, running, tokens) > seconds && count > 0 {
            count -= 1;
        }
        while self.iterations(count + 1, running, tokens) <= seconds {
            count += 1;
        }
        count
    }

    /// How many iterations end within `seconds` if the devices determine the time of each.
    fn reading_within(&self, seconds: f64, running: u32, tokens: u64) -> u64 {
        // a n / 2 * k^2 + (host + device + a (s - n / 2)) * k = seconds
        let half = self.a_token * f64::from(running) * 0.5;
        let base = self.host(running) + self.device(running);
        let linear = base + self.a_token * tokens as f64 - half;
        let seconds = seconds.max(0.0);
        let root = (linear * linear + 4.0 * half * seconds).sqrt();
        (2.0 * seconds / (linear + root)) as u64
    }

    /// How many iterations from `tokens` tokens on take as long as their launch: until the KV cache takes longer to read.
    fn launch_bound(&self, running: u32, tokens: u64) -> u64 {
        let hidden = (self.launch - self.device(running)) / self.a_token - tokens as f64;
        if hidden <= 0.0 {
            return 0;
        }
        (hidden / f64::from(running.max(1))).ceil() as u64
    }

    fn host(&self, running: u32) -> f64 {
        self.overhead + self.a_response * f64::from(running)
    }

    /// Seconds of the devices beside the reading of the KV cache.
    fn device(&self, running: u32) -> f64 {
        let running = f64::from(running);
        self.latency + self.transfer * running + self.weights.max(self.arithmetic * running)
    }
}
