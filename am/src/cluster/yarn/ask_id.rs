//! The id of an ask (YARN's allocation request id) and the filling of a slot that it is for.
//!
//! ```text
//! bit 63  62            32 .. 61     0 .. 31
//! 0       1 = trainer   slot index   incarnation
//! ```
//!
//! Each filling of a slot is an ask of its own, so the filling is the id and no table translates. Incarnations begin with 1,
//! so no id is 0, which YARN gives to containers without a request id. The ids of an attempt are unique: the core asks for
//! a filling once.

use heddle_protocol::ids::{Incarnation, Member, Role, Slot};
use heddle_yarn::AskId;

const TRAINER: i64 = 1 << 62;
const INDEX_BITS: u32 = 30;
const INCARNATION_BITS: u32 = 32;

/// The id of the ask for a filling. The index of a slot is below 2^30: a job with more slots does not fit in memory.
pub(super) fn ask_id(member: Member) -> AskId {
    let Member { slot, incarnation } = member;
    debug_assert!(slot.index < 1 << INDEX_BITS, "{slot}");
    let role = match slot.role {
        Role::Pserver => 0,
        Role::Trainer => TRAINER,
    };
    AskId(role | i64::from(slot.index) << INCARNATION_BITS | i64::from(incarnation.0))
}

/// The filling that an ask is for; `None` for an id that [`ask_id`] does not give.
pub(super) fn member_of(ask: AskId) -> Option<Member> {
    let index = u32::try_from((ask.0 & !TRAINER) >> INCARNATION_BITS).ok()?;
    let incarnation = u32::try_from(ask.0 & i64::from(u32::MAX)).ok()?;
    let slot = match ask.0 & TRAINER {
        0 => Slot::pserver(index),
        _ => Slot::trainer(index),
    };
    (ask.0 > 0 && incarnation > 0).then_some(Member { slot, incarnation: Incarnation(incarnation) })
}

/// What an ask is for, in words.
pub(super) fn asked_for(ask: AskId) -> String {
    match member_of(ask) {
        Some(member) => format!("the container for {}", member.slot),
        None => format!("ask {}", ask.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filling_has_an_id_of_its_own_that_names_it() {
        let indices = [0, 1, (1 << INDEX_BITS) - 1];
        let slots = indices.iter().flat_map(|index| [Slot::pserver(*index), Slot::trainer(*index)]);
        let mut seen = std::collections::BTreeSet::new();
        for slot in slots {
            for incarnation in [1, 2, u32::MAX].map(Incarnation) {
                let member = Member { slot, incarnation };
                let id = ask_id(member);
                assert!(id.0 > 0 && seen.insert(id), "{member}");
                assert_eq!(member_of(id), Some(member));
            }
        }
        let member = Member { slot: Slot::trainer(3), incarnation: Incarnation(2) };
        assert_eq!(ask_id(member), AskId(1 << 62 | 3 << 32 | 2));
    }

    #[test]
    fn foreign_ids_name_no_filling() {
        for id in [0, -1, i64::MIN, i64::MIN + 1, 7 << 32] {
            assert_eq!(member_of(AskId(id)), None, "{id}");
            assert_eq!(asked_for(AskId(id)), format!("ask {id}"));
        }
    }
}
