//! What Heddle's processes say to each other: ids, job spec, control messages, data frames, secret.
