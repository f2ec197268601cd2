//! Encodings of streams that several operators share: rows and columns of batches, and column values that one operator writes and others
//! read.
//!
//! Architecture invariant: this module uses no other module of the crate.

pub(crate) mod action;
#[cfg(test)]
pub(crate) mod blank;
pub(crate) mod columns;
pub(crate) mod decision;
pub(crate) mod finish_reason;
pub(crate) mod metric;
pub(crate) mod notice;
pub(crate) mod rows;
