//! A rule with values of its parameters, and its JSON form.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

use crate::kind::{GradientKind, OptimizerKind, PARAMETERS_MAX};
use crate::{add, ftrl, least, mean, sgd};

/// An update rule with its parameters.
///
/// The JSON form is an object: `kind`, each parameter by its name, and `gradient` unless the rule takes none. Programs
/// before `gradient` existed used means, so an object without it reads as `"mean"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    kind: &'static OptimizerKind,
    /// In the order of the kind; 0 beyond its last.
    parameters: [f64; PARAMETERS_MAX],
    gradient: Option<GradientKind>,
}

/// FTRL on sums with the defaults of its parameters.
impl Default for Optimizer {
    fn default() -> Self {
        Self::ftrl(0.2, 1.0, 0.0, 0.0)
    }
}

impl Optimizer {
    /// A rule with the defaults of all parameters that `given` does not name. `gradient: None` is the rule's default.
    ///
    /// # Errors
    /// The first parameter that is unknown, missing or out of bounds, or a gradient for a rule that takes none.
    pub fn new(
        kind: &'static OptimizerKind,
        given: &BTreeMap<String, f64>,
        gradient: Option<GradientKind>,
    ) -> Result<Self, String> {
        let names = || {
            let own = kind.parameters.iter().map(|parameter| parameter.name);
            own.chain(kind.gradient.map(|_| "gradient")).collect::<Vec<_>>().join(", ")
        };
        let known = |name: &str| kind.parameters.iter().any(|parameter| parameter.name == name);
        if let Some(name) = given.keys().find(|name| !known(name)) {
            let name: String = name.chars().take(100).collect();
            let has = |kind: &&OptimizerKind| kind.parameters.iter().any(|own| own.name == name);
            let owners: Vec<&str> =
                crate::KINDS.iter().copied().filter(has).map(|kind| kind.name).collect();
            let whose = match owners.is_empty() {
                true => String::new(),
                false => format!(" (it is of {})", owners.join(", ")),
            };
            return Err(format!(
                "unknown field \"{name}\"{whose}; kind \"{}\" has {}",
                kind.name,
                names()
            ));
        }
        if gradient.is_some() && kind.gradient.is_none() {
            return Err(format!(
                "kind \"{}\" adds pushes as they are; leave gradient out",
                kind.name
            ));
        }
        let mut parameters = [0.0; PARAMETERS_MAX];
        for (value, parameter) in parameters.iter_mut().zip(kind.parameters) {
            let name = parameter.name;
            *value = given.get(name).copied().or(parameter.default).ok_or_else(|| {
                format!("kind \"{}\" needs the field {name}, such as {name} = 0.1", kind.name)
            })?;
        }
        let optimizer = Self { kind, parameters, gradient: gradient.or(kind.gradient) };
        optimizer.check().map(|()| optimizer)
    }

    /// Whether all parameters are within their bounds.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), String> {
        for (value, parameter) in self.parameters.iter().zip(self.kind.parameters) {
            if !parameter.bounds.contain(*value) {
                let (name, bounds) = (parameter.name, parameter.bounds.in_words());
                return Err(format!("{name} must be {bounds} (got {value})"));
            }
        }
        Ok(())
    }

    /// Plain gradient descent on means at this rate.
    #[must_use]
    pub const fn sgd(rate: f64) -> Self {
        Self {
            kind: &sgd::KIND,
            parameters: [rate, 0.0, 0.0, 0.0],
            gradient: Some(GradientKind::Mean),
        }
    }

    /// FTRL-proximal on sums.
    #[must_use]
    pub const fn ftrl(alpha: f64, beta: f64, l1: f64, l2: f64) -> Self {
        Self {
            kind: &ftrl::KIND,
            parameters: [alpha, beta, l1, l2],
            gradient: Some(GradientKind::Sum),
        }
    }

    /// Pushes are added as they are.
    #[must_use]
    pub const fn add() -> Self {
        Self { kind: &add::KIND, parameters: [0.0; PARAMETERS_MAX], gradient: None }
    }

    /// Pushes are added up, and their means are taken when a pass ends.
    #[must_use]
    pub const fn mean() -> Self {
        Self { kind: &mean::KIND, parameters: [0.0; PARAMETERS_MAX], gradient: None }
    }

    /// The least row that was pushed stays.
    #[must_use]
    pub const fn least() -> Self {
        Self { kind: &least::KIND, parameters: [0.0; PARAMETERS_MAX], gradient: None }
    }

    /// The same rule with another gradient, if it takes one.
    #[must_use]
    pub fn with_gradient(self, gradient: GradientKind) -> Self {
        Self { gradient: self.kind.gradient.and(Some(gradient)), ..self }
    }

    /// This rule, with the values of `before` for what `stated` does not name. Another kind is left as it is.
    #[must_use]
    pub fn with_unstated(mut self, stated: &BTreeSet<String>, before: &Self) -> Self {
        if self.kind != before.kind {
            return self;
        }
        for (n, parameter) in self.kind.parameters.iter().enumerate() {
            if !stated.contains(parameter.name) {
                self.parameters[n] = before.parameters[n];
            }
        }
        if !stated.contains("gradient") {
            self.gradient = before.gradient;
        }
        self
    }

    /// The rule.
    #[must_use]
    pub fn kind(&self) -> &'static OptimizerKind {
        self.kind
    }

    /// What a step's gradient is; `None` for a rule that adds pushes as they are.
    #[must_use]
    pub fn gradient(&self) -> Option<GradientKind> {
        self.gradient
    }

    /// Values of the parameters, in the order of the kind.
    #[must_use]
    pub fn parameters(&self) -> &[f64] {
        &self.parameters[..self.kind.parameters.len()]
    }

    /// Whether its state can begin with any values: FTRL with beta = 0 has a state for 0 alone.
    #[must_use]
    pub fn begins_with_any_value(&self) -> bool {
        let beta = self.kind.parameters.iter().position(|parameter| parameter.name == "beta");
        self.kind != &ftrl::KIND || beta.is_none_or(|beta| self.parameters[beta] > 0.0)
    }

    /// f32 values of state that a shard keeps beside each parameter.
    #[must_use]
    pub fn state_per_value(&self) -> u32 {
        // At most two.
        self.kind.state.len() as u32
    }
}

impl Serialize for Optimizer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind.name)?;
        for (parameter, value) in self.kind.parameters.iter().zip(self.parameters) {
            map.serialize_entry(parameter.name, &value)?;
        }
        if let Some(gradient) = self.gradient {
            map.serialize_entry("gradient", &gradient)?;
        }
        map.end()
    }
}

/// The JSON form before its names are looked up.
#[derive(Deserialize)]
struct Fields {
    kind: String,
    gradient: Option<GradientKind>,
    #[serde(flatten)]
    parameters: BTreeMap<String, f64>,
}

impl<'de> Deserialize<'de> for Optimizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields { kind, gradient, parameters } = Fields::deserialize(deserializer)?;
        let Some(kind) = OptimizerKind::find(&kind) else {
            return Err(D::Error::custom(format!("unknown optimizer \"{kind}\"")));
        };
        let gradient = gradient.or(kind.gradient.map(|_| GradientKind::Mean));
        Self::new(kind, &parameters, gradient).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn json_form_reads_back() {
        for optimizer in
            [Optimizer::ftrl(0.2, 1.0, 0.0, 0.5), Optimizer::sgd(0.1), Optimizer::add()]
        {
            let json = serde_json::to_string(&optimizer).unwrap();
            assert_eq!(serde_json::from_str::<Optimizer>(&json).unwrap(), optimizer, "{json}");
        }
        let json = serde_json::to_string(&Optimizer::sgd(0.5)).unwrap();
        assert_eq!(json, r#"{"kind":"sgd","rate":0.5,"gradient":"mean"}"#);
    }

    #[test]
    fn json_of_older_programs_uses_means() {
        let json = r#"{"kind":"ftrl","alpha":0.1,"beta":1.0,"l1":0.0,"l2":0.0}"#;
        let read: Optimizer = serde_json::from_str(json).unwrap();
        assert_eq!(read, Optimizer::ftrl(0.1, 1.0, 0.0, 0.0).with_gradient(GradientKind::Mean));
    }

    #[test]
    fn json_with_unknown_names_is_refused() {
        for json in [
            r#"{"kind":"newton"}"#,
            r#"{"kind":"sgd","rate":1.0,"speed":2.0}"#,
            r#"{"kind":"sgd"}"#,
            r#"{"kind":"sgd","rate":-1.0}"#,
            r#"{"kind":"add","gradient":"sum"}"#,
            r#"{"kind":"ftrl","gradient":"median"}"#,
        ] {
            assert!(serde_json::from_str::<Optimizer>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn fields_of_another_kind_are_refused_with_its_name() {
        let given = |name: &str| BTreeMap::from([("rate".to_owned(), 1.0), (name.to_owned(), 1.0)]);
        let refused = |name: &str| Optimizer::new(&sgd::KIND, &given(name), None).unwrap_err();
        assert_eq!(
            refused("alpha"),
            "unknown field \"alpha\" (it is of ftrl); kind \"sgd\" has rate, gradient"
        );
        assert_eq!(
            refused("epsilon"),
            "unknown field \"epsilon\" (it is of adagrad, rmsprop, adadelta, adam); kind \"sgd\" has rate, gradient"
        );
        assert_eq!(refused("speed"), "unknown field \"speed\"; kind \"sgd\" has rate, gradient");
    }

    #[test]
    fn defaults_of_every_rule_are_within_their_bounds() {
        for kind in crate::KINDS {
            assert!(kind.parameters.len() <= PARAMETERS_MAX && kind.state.len() <= 2);
            for parameter in kind.parameters {
                let valid = |value| parameter.bounds.contain(value);
                assert!(parameter.default.is_none_or(valid), "{} {}", kind.name, parameter.name);
            }
        }
    }
}
