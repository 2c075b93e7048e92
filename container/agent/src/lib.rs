//! What every container does: find the ApplicationMaster, register, beat, obey.
