//! A scan on device memory, again and again, alone or beside other work.

use cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;
use upsweep::device::caps::{Caps, CudaCaps};
use upsweep::device::cuda::{Cuda, Prepared};
use upsweep::flow::{DeviceMut, DeviceRef, Op, Operand, Problem};
use upsweep::ops::scan::{self, Scan, ScanPlan, ScanProblem, ScanSpec};
use upsweep::types::{DType, Operator};

/// A prepared scan with an output and scratch of its own.
pub(crate) struct Repeated {
    cuda: Cuda,
    stream: Arc<CudaStream>,
    prepared: Prepared<Scan>,
    input: u64,
    output: CudaSlice<u8>,
    output_at: u64,
    scratch: (u64, u64),
    _scratch: CudaSlice<u8>,
}

impl Repeated {
    /// `input` must hold the problem's elements, and nobody may write there while calls are under way.
    pub(crate) fn new(cuda: &Cuda, stream: &Arc<CudaStream>, plan: &ScanPlan, input: &CudaSlice<u8>) -> Repeated {
        let Operand { dtype, len } = plan.problem.input();
        assert!(len * dtype.size() <= input.len() as u64);
        let to = plan.problem.output();
        let mut output = stream.alloc_zeros::<u8>((to.len * to.dtype.size()) as usize).unwrap();
        let scratch = stream.alloc_zeros::<u8>(plan.scratch_bytes().max(1) as usize).unwrap();
        let output_at = DeviceMut::of::<u8, _>(&mut output, stream).address();
        let (input, scratch_at) = (DeviceRef::of::<u8, _>(input, stream).address(), DeviceRef::of::<u8, _>(&scratch, stream));
        let scratch_at = (scratch_at.address(), scratch_at.len());
        stream.synchronize().unwrap();
        let (cuda, stream, prepared) = (cuda.clone(), stream.clone(), cuda.prepare(plan).unwrap());
        Repeated { cuda, stream, prepared, input, output, output_at, scratch: scratch_at, _scratch: scratch }
    }

    /// Enqueues a call, on an output that holds no results of the call before.
    pub(crate) fn enqueue(&mut self) {
        self.stream.memset_zeros(&mut self.output).unwrap();
        let problem = &self.prepared.plan().problem;
        let (from, to) = (problem.input(), problem.output());
        // SAFETY: `new` checked or made memory of these sizes, which `self` and its maker keep until the stream was waited for.
        unsafe {
            let input = DeviceRef::from_raw(self.input, from.len, from.dtype).unwrap();
            let output = DeviceMut::from_raw(self.output_at, to.len, to.dtype).unwrap();
            self.prepared.enqueue(&self.stream, Scan::device_operands(input, None, output), self.scratch).unwrap();
        }
    }

    /// Waits, and checks that no kernel reported a fault.
    pub(crate) fn wait(&self) {
        self.stream.synchronize().unwrap();
        self.prepared.check().unwrap_or_else(|error| panic!("{}: {error}", self.prepared.plan()));
    }

    /// Waits for the results.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.wait();
        self.cuda.download(&self.output).unwrap()
    }

    /// The results' address.
    pub(crate) fn output_at(&self) -> u64 {
        self.output_at
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}

/// Other work on another stream, or none: scans of an array of their own, whose blocks take multiprocessors and their shared
/// memory away whenever they can.
pub(crate) struct Beside {
    work: Option<(Repeated, CudaSlice<u8>)>,
}

impl Beside {
    pub(crate) fn nothing() -> Beside {
        Beside { work: None }
    }

    pub(crate) fn a_busy_stream(cuda: &Cuda) -> Beside {
        const ELEMENTS: u64 = 1 << 24;
        let problem = ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), DType::F32, ELEMENTS).unwrap();
        let plan = scan::plan(&problem, &Caps::Cuda(cuda.caps().clone())).unwrap();
        let stream = cuda.context().new_stream().unwrap();
        let input = stream.alloc_zeros::<u8>(4 * ELEMENTS as usize).unwrap();
        stream.synchronize().unwrap();
        Beside { work: Some((Repeated::new(cuda, &stream, &plan, &input), input)) }
    }

    /// Enqueues so many calls more.
    pub(crate) fn keep_busy(&mut self, calls: usize) {
        if let Some((work, _)) = &mut self.work {
            (0..calls).for_each(|_| work.enqueue());
        }
    }
}

/// The device's capabilities, and those of a device that is the same but for most of its multiprocessors.
pub(crate) fn whole_and_reduced(cuda: &Cuda) -> [Caps; 2] {
    const FEW: u32 = 7;
    let whole = cuda.caps().clone();
    let reduced = CudaCaps { multiprocessors: FEW.min(whole.multiprocessors), ..whole.clone() };
    [Caps::Cuda(whole), Caps::Cuda(reduced)]
}
