//! A prepared plan serves one stream at a time: its control block would be shared.
use upsweep::device::cuda::{Cuda, Prepared};
use upsweep::flow::{DeviceMut, DeviceRef};
use upsweep::ops::reduce::{Reduce, ReduceDeviceOperands};

pub fn sound(cuda: &Cuda, prepared: &mut Prepared<Reduce>) -> upsweep::Result<Vec<f32>> {
    let stream = cuda.stream().clone();
    let input = cuda.upload(&[1.0f32])?;
    let mut output = cuda.upload(&[0.0f32])?;
    cuda.scope(&stream, |scope| {
        let operands = ReduceDeviceOperands {
            input: DeviceRef::of::<f32, _>(&input, &stream),
            output: DeviceMut::of::<f32, _>(&mut output, &stream),
        };
        scope.enqueue(prepared, operands, None)?;
        let mut other = cuda.upload(&[0.0f32])?;
        let again = ReduceDeviceOperands {
            input: DeviceRef::of::<f32, _>(&input, &stream),
            output: DeviceMut::of::<f32, _>(&mut other, &stream),
        };
        // SAFETY: none: this is the fault.
        unsafe { prepared.enqueue(&stream, again, (0, 0)) }
    })?;
    drop(input);
    cuda.download(&output)
}

fn main() {}
