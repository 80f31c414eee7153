//! Orders of events that would let the device touch freed or aliased memory do not compile.

#[cfg(feature = "cuda")]
#[test]
fn unsound_orders_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/unsound/sound.rs");
    cases.compile_fail("tests/unsound/drop_input_in_scope.rs");
    cases.compile_fail("tests/unsound/read_output_in_scope.rs");
    cases.compile_fail("tests/unsound/buffer_of_the_scope_itself.rs");
    cases.compile_fail("tests/unsound/one_plan_on_two_streams.rs");
    cases.compile_fail("tests/unsound/enqueue_without_unsafe.rs");
}
