//! Tests at the wire: real processes, real sockets, raw bytes.

mod harness;

mod smoke;
