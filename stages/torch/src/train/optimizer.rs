//! AdamW with gradient clipping.

use tch::{Kind, TchError, Tensor};

use super::config::OptimizerConfig;

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), over the parameters of one model.
///
/// The moments of all parameters are kept in one buffer each, and the gradient is copied into one buffer. An update then takes about a
/// dozen kernels plus two per parameter, instead of a dozen per parameter.
#[derive(Debug)]
pub struct AdamW {
    config: OptimizerConfig,
    /// Exponential moving averages of the gradient and of its square, `[parameters]`.
    moments: (Tensor, Tensor),
    updates: u64,
    /// The position in the learning-rate schedule, in steps.
    steps: u64,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// L2 norm of the gradient before clipping. If it is not finite, the update was not applied.
    pub grad_norm: f64,
    /// The learning rate at the update's step, even if the update was not applied.
    pub learning_rate: f64,
}

impl Update {
    /// Returns `true` if the parameters were changed.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        self.grad_norm.is_finite()
    }
}

impl AdamW {
    /// Creates an optimizer of `parameters` with moments of 0.
    ///
    /// # Errors
    /// Returns an error if the device runs out of memory.
    pub fn new(config: OptimizerConfig, parameters: &[(String, Tensor)]) -> Result<Self, TchError> {
        let size: i64 = parameters.iter().map(|(_, p)| p.numel() as i64).sum();
        let device = parameters.first().map_or(tch::Device::Cpu, |(_, p)| p.device());
        let zeros = || Tensor::f_zeros([size], (Kind::Float, device));
        Ok(Self { config, moments: (zeros()?, zeros()?), updates: 0, steps: 0 })
    }

    /// Updates the parameters with their gradients, each divided by `denominator`, and advances the learning-rate schedule. Changes nothing
    /// if the norm of the gradient is not finite. The gradients are not cleared.
    ///
    /// # Errors
    /// Returns an error if an operation fails, or `parameters` differ in total size from the parameters that the optimizer was created for.
    pub fn update(
        &mut self,
        parameters: &[(String, Tensor)],
        denominator: f64,
    ) -> Result<Update, TchError> {
        let gradient = tch::no_grad(|| flat_gradient(parameters)?.f_div_scalar(denominator))?;
        let update = self.update_by(parameters, gradient)?;
        if update.is_applied() {
            self.end_step();
        }
        Ok(update)
    }

    /// Updates the parameters with `gradient`, `[parameters]`. Changes nothing if the norm of the gradient is not finite. A training step
    /// may have several of these updates, all with one learning rate, before it [ends](Self::end_step).
    pub(crate) fn update_by(
        &mut self,
        parameters: &[(String, Tensor)],
        mut gradient: Tensor,
    ) -> Result<Update, TchError> {
        tch::no_grad(|| {
            let grad_norm = gradient.f_norm()?.f_double_value(&[])?;
            let learning_rate = self.config.learning_rate.at(self.steps);
            if grad_norm.is_finite() {
                clip(&mut gradient, grad_norm, self.config.grad_clip)?;
                let change = self.change(&gradient, learning_rate)?;
                apply(parameters, &change, 1.0 - learning_rate * self.config.weight_decay)?;
            }
            Ok(Update { grad_norm, learning_rate })
        })
    }

    /// Returns the moments by name, each `[parameters]`. The tensors share their memory with the optimizer.
    pub(crate) fn moments(&self) -> [(&'static str, Tensor); 2] {
        [("mean", self.moments.0.shallow_clone()), ("square", self.moments.1.shallow_clone())]
    }

    /// Advances the learning-rate schedule.
    pub(crate) fn end_step(&mut self) {
        self.steps += 1;
    }

    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// Returns the position in the learning-rate schedule: the number of steps with an update so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the number of updates and of steps after a restore. The moments are restored through the tensors of [`moments`](Self::moments).
    pub(crate) fn resume(&mut self, updates: u64, steps: u64) {
        (self.updates, self.steps) = (updates, steps);
    }

    /// Updates the moments and returns the change to subtract from the parameters, `[parameters]`.
    fn change(&mut self, gradient: &Tensor, learning_rate: f64) -> Result<Tensor, TchError> {
        self.updates += 1;
        let (first, second) = self.config.betas;
        let past = i32::try_from(self.updates).unwrap_or(i32::MAX);
        let correction = |beta: f64| 1.0 - beta.powi(past);
        let (mean, square) = (&mut self.moments.0, &mut self.moments.1);
        let _same = mean.f_lerp_(gradient, 1.0 - first)?;
        let _same = square.f_lerp_(&gradient.f_square()?, 1.0 - second)?;
        let root = square
            .f_sqrt()?
            .f_div_scalar_(correction(second).sqrt())?
            .f_add_scalar_(self.config.eps)?;
        mean.f_div(&root)?.f_mul_scalar_(learning_rate / correction(first))
    }
}

/// Sets the gradients of `parameters` to 0.
///
/// # Errors
/// Returns an error if an operation fails.
pub fn clear_gradients(parameters: &[(String, Tensor)]) -> Result<(), TchError> {
    for (_, parameter) in parameters {
        let mut gradient = parameter.f_grad()?;
        if gradient.defined() {
            let _same = gradient.f_zero_()?;
        }
    }
    Ok(())
}

/// Returns the gradients of all parameters, concatenated, `[parameters]`. A parameter without gradient contributes zeros.
///
/// # Errors
/// Returns an error if an operation fails.
pub(crate) fn flat_gradient(parameters: &[(String, Tensor)]) -> Result<Tensor, TchError> {
    let flat = |(_, parameter): &(String, Tensor)| {
        let gradient = parameter.f_grad()?;
        if gradient.defined() {
            gradient.f_reshape(-1)
        } else {
            parameter.f_detach()?.f_zeros_like()?.f_reshape(-1)
        }
    };
    Tensor::f_cat(&parameters.iter().map(flat).collect::<Result<Vec<_>, _>>()?, 0)
}

fn clip(gradient: &mut Tensor, norm: f64, max_norm: f64) -> Result<(), TchError> {
    // The constant is that of torch, so that runs are comparable. It matters only for norms of about the same size.
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        let _same = gradient.f_mul_scalar_(factor)?;
    }
    Ok(())
}

/// Replaces each parameter by `parameter * keep - change`, in place.
fn apply(parameters: &[(String, Tensor)], change: &Tensor, keep: f64) -> Result<(), TchError> {
    let sizes: Vec<i64> = parameters.iter().map(|(_, p)| p.numel() as i64).collect();
    for ((_, parameter), change) in
        parameters.iter().zip(change.f_split_with_sizes(sizes.as_slice(), 0)?)
    {
        let mut parameter = parameter.shallow_clone();
        if keep != 1.0 {
            let _same = parameter.f_mul_scalar_(keep)?;
        }
        let _same = parameter.f_sub_(&change.f_view_as(&parameter)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rollpacker_stages::train::learning_rate::{Decay, LearningRate};

    use super::*;

    fn config(grad_clip: f64) -> OptimizerConfig {
        OptimizerConfig {
            learning_rate: LearningRate { peak: 0.1, warmup_steps: 2, decay: Decay::Constant },
            weight_decay: 0.3,
            grad_clip,
            ..OptimizerConfig::default()
        }
    }

    fn leaves(values: [&[f32]; 2]) -> Vec<(String, Tensor)> {
        values
            .iter()
            .map(|v| (String::new(), Tensor::from_slice(v).set_requires_grad(true)))
            .collect()
    }

    /// Adds `gradient` to the gradients of the parameters, by the backward pass of a loss that has this gradient.
    fn pull(parameters: &[(String, Tensor)], gradient: [&[f32]; 2]) {
        for ((_, p), g) in parameters.iter().zip(gradient) {
            p.dot(&Tensor::from_slice(g)).backward();
        }
    }

    fn values(parameters: &[(String, Tensor)]) -> Vec<f64> {
        parameters
            .iter()
            .flat_map(|(_, p)| Vec::<f32>::try_from(&p.detach()).unwrap())
            .map(f64::from)
            .collect()
    }

    /// Computes algorithm 2 of the paper for a single number.
    fn oracle(mut x: f64, gradients: &[f64], config: &OptimizerConfig) -> f64 {
        let (mut m, mut v) = (0.0, 0.0);
        let (b1, b2) = config.betas;
        for (t, g) in gradients.iter().enumerate() {
            let rate = config.learning_rate.at(t as u64);
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            let (m, v) = (m / (1.0 - b1.powi(t as i32 + 1)), v / (1.0 - b2.powi(t as i32 + 1)));
            x -= rate * (m / (v.sqrt() + config.eps) + config.weight_decay * x);
        }
        x
    }

    #[test]
    fn matches_the_algorithm_number_by_number() {
        let config = config(f64::INFINITY);
        let parameters = leaves([&[1.0, -2.0], &[0.5]]);
        let mut adam = AdamW::new(config, &parameters).unwrap();
        for gradient in
            [[[4.0, -1.0].as_slice(), &[0.0]], [&[-2.0, 3.0], &[1e-3]], [&[0.2, 0.2], &[8.0]]]
        {
            clear_gradients(&parameters).unwrap();
            pull(&parameters, gradient);
            let _update = adam.update(&parameters, 2.0).unwrap();
        }
        let expect = [
            oracle(1.0, &[2.0, -1.0, 0.1], &config),
            oracle(-2.0, &[-0.5, 1.5, 0.1], &config),
            oracle(0.5, &[0.0, 5e-4, 4.0], &config),
        ];
        for (ours, expect) in values(&parameters).into_iter().zip(expect) {
            assert!((ours - expect).abs() < 1e-6, "{ours}, expected {expect}");
        }
    }

    #[test]
    fn the_updates_of_a_step_have_one_learning_rate() {
        let parameters = leaves([&[1.0, -2.0], &[0.5]]);
        let mut adam = AdamW::new(config(f64::INFINITY), &parameters).unwrap();
        let mut rate = || {
            let gradient = Tensor::from_slice(&[1.0f32, 1.0, 1.0]);
            adam.update_by(&parameters, gradient).unwrap().learning_rate
        };
        assert_eq!([rate(), rate()], [0.05, 0.05]);
        adam.end_step();
        assert_eq!((adam.updates(), adam.steps()), (2, 1));
        let gradient = Tensor::from_slice(&[1.0f32, 1.0, 1.0]);
        assert_eq!(adam.update_by(&parameters, gradient).unwrap().learning_rate, 0.1);
    }

    #[test]
    fn clips_the_norm_over_all_parameters_and_reports_it_unclipped() {
        let parameters = leaves([&[0.0, 0.0], &[0.0]]);
        pull(&parameters, [&[3.0, 0.0], &[4.0]]);
        let mut adam = AdamW::new(config(0.5), &parameters).unwrap();
        let update = adam.update(&parameters, 1.0).unwrap();
        assert!((update.grad_norm - 5.0).abs() < 1e-6);
        let mean = Vec::<f32>::try_from(&adam.moments.0).unwrap();
        assert!((mean[0] - 0.03).abs() < 1e-6 && (mean[2] - 0.04).abs() < 1e-6, "{mean:?}");
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let parameters = leaves([&[1.0, 2.0], &[3.0]]);
        pull(&parameters, [&[f32::NAN, 0.0], &[1.0]]);
        let mut adam = AdamW::new(config(1.0), &parameters).unwrap();
        assert!(!adam.update(&parameters, 1.0).unwrap().grad_norm.is_finite());
        assert_eq!(values(&parameters), [1.0, 2.0, 3.0]);
        assert_eq!(adam.updates, 0);
    }

    #[test]
    fn a_parameter_without_gradient_only_decays() {
        let parameters = leaves([&[1.0, 1.0], &[1.0]]);
        parameters[0].1.dot(&Tensor::from_slice(&[1.0f32, 1.0])).backward();
        let mut adam = AdamW::new(config(1.0), &parameters).unwrap();
        let update = adam.update(&parameters, 1.0).unwrap();
        let left = 1.0 - update.learning_rate * 0.3;
        assert!((values(&parameters)[2] - left).abs() < 1e-6);
    }
}
