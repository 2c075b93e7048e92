//! Backups follow the state of every update rule.

use std::collections::BTreeMap;

use heddle_optimizer::{KINDS, OptimizerKind};

use super::random::{UNITS, run, undisturbed_with};
use super::*;

/// The rule with its defaults, and a rate where it has none.
fn usual(kind: &'static OptimizerKind) -> Optimizer {
    let required = kind.parameters.iter().filter(|parameter| parameter.default.is_none());
    let given: BTreeMap<String, f64> = required.map(|own| (own.name.to_owned(), 0.1)).collect();
    Optimizer::new(kind, &given, None).expect("within bounds")
}

/// The primary is lost at a random moment: the bytes of the model are those of an undisturbed run, whose values depend on the
/// rule's state.
#[test]
fn each_optimizer_outlives_its_primary_with_the_same_bytes() {
    let sharing = Sharing::Lanes { lanes: UNITS };
    for (kind, is_sparse) in KINDS.iter().flat_map(|kind| [(*kind, false), (*kind, true)]) {
        let optimizer = usual(kind);
        let wanted = undisturbed_with(sharing, is_sparse, optimizer);
        for seed in 0..60 {
            let got = run((seed, true), sharing, is_sparse, optimizer);
            let name = kind.name;
            let got = got.unwrap_or_else(|error| panic!("seed {seed}, {name}: {error}"));
            assert_eq!(got, wanted, "seed {seed}, {name}, sparse {is_sparse}");
        }
    }
}
