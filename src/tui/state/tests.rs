//! Tables of messages and what they make of the state.
