//! Running plans on the simulator: shared by the tests of this crate.
#![allow(dead_code)]

use upsweep::device::caps::{Caps, DeviceKind};
use upsweep::flow::{DeviceMut, DeviceRef, Op, Plan, Problem, Rung, Tuning};
use upsweep_sim::{Report, Sim};

/// Memory of any dtype, aligned as device memory is.
pub(crate) struct Bytes {
    words: Vec<u128>,
    pub(crate) len: usize,
}

impl Bytes {
    pub(crate) fn new(len: usize, fill: u8) -> Bytes {
        Bytes { words: vec![u128::from_ne_bytes([fill; 16]); len.div_ceil(16) + 32], len }
    }

    pub(crate) fn of<T: Copy>(values: &[T]) -> Bytes {
        let mut bytes = Bytes::new(size_of_val(values), 0xa5);
        // SAFETY: plain data of the tests' dtypes.
        let from = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        bytes.get().copy_from_slice(from);
        bytes
    }

    fn start(&self) -> usize {
        let address = self.words.as_ptr() as usize;
        address.next_multiple_of(256) - address
    }

    pub(crate) fn get(&mut self) -> &mut [u8] {
        let (start, len) = (self.start(), self.len);
        // SAFETY: 512 more bytes than `len` were allocated.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>().add(start), len) }
    }

    pub(crate) fn as_of<T: Copy>(&mut self) -> Vec<T> {
        let bytes = self.get();
        // SAFETY: plain data; the allocation is aligned to 256 bytes.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), bytes.len() / size_of::<T>()) }.to_vec()
    }

    pub(crate) fn address(&mut self) -> u64 {
        self.get().as_mut_ptr() as u64
    }
}

/// A rung's plan on the simulator.
pub(crate) fn plan_of<O: Op>(sim: &Sim, problem: &O::Problem, rung: &str) -> Plan<O> {
    let rung = Rung::<O>::find(DeviceKind::Cuda, rung).unwrap();
    Plan::with_rung(problem, &Caps::Cuda(sim.caps().clone()), rung, Tuning::default(), "a test".into()).unwrap()
}

/// Runs a plan of one input once.
pub(crate) fn run<O: Op>(sim: &Sim, plan: &Plan<O>, input: &mut Bytes) -> (Bytes, Report) {
    run_with(sim, plan, input, None)
}

/// Runs a plan once, on the second input too where the problem has one.
pub(crate) fn run_with<O: Op>(sim: &Sim, plan: &Plan<O>, input: &mut Bytes, second: Option<&mut Bytes>) -> (Bytes, Report) {
    let (from, to) = (plan.problem.input(), plan.problem.output());
    let mut output = Bytes::new((to.len * to.dtype.size()) as usize, 0xa5);
    let mut scratch = Bytes::new(plan.scratch_bytes() as usize, 0xa5);
    let mut prepared = sim.prepare(plan).unwrap();
    // SAFETY: the buffers are as long as the problem asks for and outlive the call.
    let report = unsafe {
        let operands = O::device_operands(
            DeviceRef::from_raw(input.address(), from.len, from.dtype).unwrap(),
            second
                .zip(plan.problem.second_input())
                .map(|(bytes, operand)| DeviceRef::from_raw(bytes.address(), operand.len, operand.dtype).unwrap()),
            DeviceMut::from_raw(output.address(), to.len, to.dtype).unwrap(),
        );
        prepared.run(operands, (scratch.address(), scratch.len as u64)).unwrap()
    };
    (output, report)
}
