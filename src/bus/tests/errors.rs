//! Written with the rules it proves.
