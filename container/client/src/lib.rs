//! The trainer's side of the data plane: a state machine, and its IO.
