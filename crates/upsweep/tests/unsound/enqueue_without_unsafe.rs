//! The bare enqueue makes promises that only its caller can keep, so it is unsafe.
use upsweep::device::cuda::{Cuda, Prepared};
use upsweep::flow::{DeviceMut, DeviceRef};
use upsweep::ops::reduce::{Reduce, ReduceDeviceOperands};

pub fn sound(cuda: &Cuda, prepared: &mut Prepared<Reduce>) -> upsweep::Result<Vec<f32>> {
    let stream = cuda.stream().clone();
    let input = cuda.upload(&[1.0f32])?;
    let mut output = cuda.upload(&[0.0f32])?;
    {
        let operands = ReduceDeviceOperands {
            input: DeviceRef::of::<f32, _>(&input, &stream),
            output: DeviceMut::of::<f32, _>(&mut output, &stream),
        };
        prepared.enqueue(&stream, operands, (0, 0))?;
    }
    drop(input);
    cuda.download(&output)
}

fn main() {}
