//! The C++ form: the caller's text in the shape of the operators in `kernels/operators.cuh`.

use super::Facts;
use crate::types::Operator;

/// The C++ form of an operator: the members of its state, and the bodies of three functions.
///
/// | piece | is the body of | for instance |
/// |---|---|---|
/// | `state` | `struct State { ... };`: the same members in the same order as the Rust state, without constructors | `float a, b;` |
/// | `lift` | `State lift(x)`: `x` is the element; f16 and bf16 come as `float`, integers and bool of fewer than 32 bits as 32-bit ones | `return {1.0f, x};` |
/// | `combine` | `State combine(State a, State b)`: `a` stands in front of `b` | `return {a.a * b.a, a.b * b.a + b.b};` |
/// | `finish` | `auto finish(State state)`: what it returns is converted to the output; f16 and bf16 are made from a `float` or a `double`, to the nearest | `return state.b;` |
///
/// The identity's bytes are taken over from Rust. Pieces are C++17 for a device: CUDA's own mathematical functions are there
/// (`sqrtf`, `exp`, `fminf`), and `u32`, `i64`, ... as names of integers; nothing can be included. The compiler may fuse
/// `a * b + c` into one rounding, so float results may differ from the CPU's in their last bits; `__fmul_rn` and
/// `__fadd_rn` keep two.
///
/// The text becomes part of the kernels. It must have no side effects, and what breaks out of its piece (an unmatched
/// brace, a preprocessor directive) is the caller's own business: never build it from input that is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceText<'a> {
    /// Members of the state.
    pub state: &'a str,
    /// Makes the state of one element.
    pub lift: &'a str,
    /// Makes the state of two stretches of elements.
    pub combine: &'a str,
    /// Makes the output.
    pub finish: &'a str,
}

/// The C++ struct of an operator. In messages, lines of the caller's text count from 1, under the operator's name.
pub(super) fn of(facts: &Facts, identity: &[u8], text: &DeviceText<'_>) -> String {
    let Facts { name, input, output, state_bytes, .. } = facts;
    let (input, output) = (input.row().c_name, output.row().c_name);
    let words = identity.as_chunks::<4>().0.iter().map(|word| format!("{:#x}u", u32::from_ne_bytes(*word)));
    let words = words.collect::<Vec<_>>().join(", ");
    let this = Operator::User.row().c_name;
    let piece = |what: &str, body: &str| {
        format!("#line 1 \"operator {name}, {what}\"\n{body}\n#line 1 \"behind operator {name}, {what}\"")
    };
    let rule = format!("operator {name}: the members of `state` are not those of the Rust state, which has {state_bytes} bytes");
    let lines = [
        "namespace upsweep {".into(),
        format!("struct {this} {{"),
        format!("using Input = {input};"),
        format!("using Output = {output};"),
        "struct State {".into(),
        piece("state", text.state),
        "};".into(),
        format!("static_assert(sizeof(State) == {state_bytes}, \"{rule}\");"),
        "static UPSWEEP_DEVICE State identity() {".into(),
        format!("const Words<State> words = {{{{{words}}}}};"),
        "return from_words<State>(words);".into(),
        "}".into(),
        "static UPSWEEP_DEVICE State lift_wide(typename Traits<Input>::Wide x) {".into(),
        piece("lift", text.lift),
        "}".into(),
        "static UPSWEEP_DEVICE State lift(Input x, u64) { return lift_wide(widen(x)); }".into(),
        "static UPSWEEP_DEVICE State combine(State a, State b) {".into(),
        piece("combine", text.combine),
        "}".into(),
        "static UPSWEEP_DEVICE auto finish_wide(State state) {".into(),
        piece("finish", text.finish),
        "}".into(),
        "static UPSWEEP_DEVICE Output finish(State state, u64) { return Narrow<Output>::from(finish_wide(state)); }".into(),
        format!("UPSWEEP_BY_TREES({this})"),
        "};".into(),
        "// A scan begins with the identity, whatever word the plan gives for it.".into(),
        format!("template <> UPSWEEP_DEVICE {this}::State initial_state<{this}::State>(u64) {{ return {this}::identity(); }}"),
        "}  // namespace upsweep".into(),
    ];
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use crate::ops::user::examples;

    #[test]
    fn the_text_stands_in_the_struct_with_its_own_lines() {
        let operator = examples::fill_forward().unwrap();
        let source = operator.device_source().unwrap();
        assert!(source.contains("#line 1 \"operator fill forward, combine\"\nreturn b."), "{source}");
        assert!(source.contains("sizeof(State) == 8"), "{source}");
        // NaN and 0.
        assert!(source.contains("{{0x7fc00000u, 0x0u}}"), "{source}");
    }
}
