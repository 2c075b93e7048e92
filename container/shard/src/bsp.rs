//! BSP: stages each part of a lane's step, exactly once.

use heddle_optimizer::all_finite;
use heddle_protocol::frame::Status;

use crate::ahead::AheadPushes;
use crate::frame::Frame;
use crate::lanes::{StagedLanes, StepPart};
use crate::tables::Tables;

/// Stages a part if it is the next one of its lane. Returns the status of the reply; none while the part waits for the
/// next step.
pub(crate) fn stage(
    lanes: &mut StagedLanes,
    ahead: &mut AheadPushes,
    tables: &Tables,
    frame: &Frame<'_>,
) -> Option<Status> {
    let header = &frame.header;
    if let Err(status) = lanes.admit(header.unit, header.hand_out) {
        return Some(status);
    }
    // While a step is being applied, all of it is here.
    if header.step < lanes.step() {
        return Some(Status::Already);
    }
    if header.step == lanes.step().next() && lanes.may_be_ahead(header.unit) {
        // Unless a pull of the lane waits here, its next step may come before other lanes are done with this one.
        if ahead.keep(frame) {
            return None;
        }
        lanes.defer(header.unit);
        return Some(Status::Later);
    }
    if header.step > lanes.step() {
        return Some(Status::OutOfOrder);
    }
    if let Err(status) = lanes.check_part(header.unit, header.part) {
        return Some(status);
    }
    let gradient = match tables.check_push(frame) {
        Ok(gradient) => gradient,
        Err(status) => return Some(status),
    };
    let finite = all_finite(frame.values);
    let status = lanes.push(tables.all(), StepPart::of(header), gradient.filter(|_| finite));
    Some(if finite { status } else { Status::NotFinite })
}
