//! The parameter server process: data threads, saver, loader.
