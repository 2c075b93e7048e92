//! Amounts of what YARN schedules: GPUs, CPU, memory.

use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// An amount of each resource. Ordered by GPUs, then CPU, then memory: the scarcest first.
///
/// Negative where a node, a queue or the cluster is committed above its capacity, as YARN reports it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(default)]
pub struct ResourceVector {
    /// Devices.
    pub gpus: i64,
    /// YARN's virtual cores.
    pub vcores: i64,
    /// MiB.
    pub memory_mib: i64,
}

impl ResourceVector {
    /// What a queue without a maximum has. A quarter of the largest number, so that sums stay exact.
    pub(crate) const UNLIMITED: Self = Self::all(i64::MAX / 4);
    /// What a closed node has: less than any demand.
    pub(crate) const CLOSED: Self = Self::all(i64::MIN / 4);

    /// Devices, virtual cores, MiB.
    #[must_use]
    pub const fn new(gpus: i64, vcores: i64, memory_mib: i64) -> Self {
        Self { gpus, vcores, memory_mib }
    }

    const fn all(amount: i64) -> Self {
        Self::new(amount, amount, amount)
    }

    fn each(self, other: Self, of: fn(i64, i64) -> i64) -> Self {
        Self {
            gpus: of(self.gpus, other.gpus),
            vcores: of(self.vcores, other.vcores),
            memory_mib: of(self.memory_mib, other.memory_mib),
        }
    }

    /// Whether `room` has at least this of each resource that is asked for. Node, queue and limit may lack a resource, or be
    /// above their capacity of it, as long as it is not asked for.
    #[must_use]
    pub fn fits_in(self, room: Self) -> bool {
        let fits = |asked: i64, has: i64| asked <= has || asked <= 0;
        fits(self.gpus, room.gpus)
            && fits(self.vcores, room.vcores)
            && fits(self.memory_mib, room.memory_mib)
    }

    /// The larger amount of each resource.
    pub(crate) fn max(self, other: Self) -> Self {
        self.each(other, i64::max)
    }

    /// The smaller amount of each resource.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.each(other, i64::min)
    }

    /// This many times as much.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        self.each(Self::all(i64::from(count)), i64::saturating_mul)
    }

    /// A part of `count` equal ones, rounded up.
    pub(crate) fn part(self, count: u32) -> Self {
        self.each(Self::all(i64::from(count.max(1))), |amount, count| {
            amount.max(0).saturating_add(count - 1) / count
        })
    }

    /// How often `part` fits, in 1/1024.
    pub(crate) fn ratio(self, part: Self) -> i64 {
        let ratio = |has: i64, needs: i64| {
            if needs > 0 { has.max(0).saturating_mul(1024) / needs } else { i64::MAX }
        };
        ratio(self.gpus, part.gpus)
            .min(ratio(self.vcores, part.vcores))
            .min(ratio(self.memory_mib, part.memory_mib))
    }
}

impl Add for ResourceVector {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.each(other, i64::saturating_add)
    }
}

impl Sub for ResourceVector {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.each(other, i64::saturating_sub)
    }
}

impl AddAssign for ResourceVector {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for ResourceVector {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}
