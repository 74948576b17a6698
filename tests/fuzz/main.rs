//! What `tests/fuzz-parsers` builds: one of the targets under libFuzzer, which looks for inputs that reach new code.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod targets;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static TARGET: std::sync::LazyLock<targets::Target> = std::sync::LazyLock::new(|| {
        targets::named(&std::env::var("TEST_FUZZ_TARGET").expect("names a target"))
    });
    TARGET(bytes);
});

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run tests/fuzz-parsers");
}
