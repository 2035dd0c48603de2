//! Table 1: activation functions and their degrees.

use subdeq::Activation;
use subdeq::subdeq_theory::activation::LogSumExp;
use subdeq::subdeq_theory::degree::{Domain, NoDegree, Nonlinearity};

/// One column of the paper's table.
struct Entry {
    name: &'static str,
    /// `None` for log-sum-exp, a functional of a whole vector.
    function: Option<Nonlinearity>,
    printed: f64,
    domain: Domain,
    remark: &'static str,
}

fn entries() -> [Entry; 8] {
    let entry = |name, activation, shift, printed, domain, remark| Entry {
        name,
        function: Some(Nonlinearity::shifted(activation, shift)),
        printed,
        domain,
        remark,
    };
    use Domain::{Nonnegative, Reals};
    [
        entry(
            "sigmoid",
            Activation::Sigmoid,
            0.0,
            1.0,
            Nonnegative,
            "the tight constant is LambertW(1/e), attained at u = 1.2785; 1 is an upper bound only",
        ),
        entry(
            "softplus",
            Activation::Softplus { beta: 1.0 },
            0.0,
            1.0,
            Nonnegative,
            "the limit at infinity, for every beta",
        ),
        entry("tanh", Activation::Tanh, 0.0, 1.0, Nonnegative, "the limit at zero"),
        entry(
            "tanh + 1.2",
            Activation::Tanh,
            1.2,
            0.99,
            Reals,
            "0.99 is too small: it needs the shift 1.203384. Below one all the same",
        ),
        entry(
            "tanh + 1.603",
            Activation::Tanh,
            1.603,
            0.499,
            Reals,
            "0.499 is too small: it needs the shift 1.603331. Below one half all the same",
        ),
        entry(
            "hardtanh [0.5, 2]",
            Activation::HardTanh { lo: 0.5, hi: 2.0 },
            0.0,
            1.0,
            Reals,
            "attained; any 0 < lo < hi",
        ),
        entry(
            "leaky ReLU, slope 0.01",
            Activation::LeakyRelu { slope: 0.01 },
            0.0,
            1.0,
            Reals,
            "negative on the negative half-line; on R the entry holds for slopes <= 0 only, else on R_+ (degree 1)",
        ),
        Entry {
            name: "log-sum-exp",
            function: None,
            printed: 1.0,
            domain: Nonnegative,
            remark: "right; the published step sum z_i <= LSE(z) is not (z = (1, 1))",
        },
    ]
}

pub fn print() {
    println!("Degrees of subhomogeneity, rounded up. R_+ is what nonnegative weights give.\n");
    println!("{:<24}{:<6}{:>8}{:>14}{:>14}  remark", "activation", "on", "paper", "true", "true on R_+");
    for entry in entries() {
        let on = if entry.domain == Domain::Reals { "R" } else { "R_+" };
        let degree = |domain| match entry.function {
            Some(h) => cell(h.degree(domain).map(|c| c.bound())),
            None => cell(Ok(LogSumExp.degree().bound())),
        };
        let (there, positive) = (degree(entry.domain), degree(Domain::Nonnegative));
        println!("{:<24}{on:<6}{:>8}{there:>14}{positive:>14}  {}", entry.name, entry.printed, entry.remark);
    }
}

fn cell(degree: Result<f64, NoDegree>) -> String {
    match degree {
        Ok(c) => format!("{:.6}", (c * 1e6).ceil() / 1e6),
        Err(NoDegree::NotPositive { .. }) => "not positive".into(),
        Err(NoDegree::Infinite | NoDegree::NotBelowOne) => "infinite".into(),
    }
}
