//! What is refused at the door, and with which words.
