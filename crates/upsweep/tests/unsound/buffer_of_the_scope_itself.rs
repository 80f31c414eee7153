//! A buffer that lives inside the scope would be freed before the scope waits.
use upsweep::device::cuda::{Cuda, Prepared};
use upsweep::flow::{DeviceMut, DeviceRef};
use upsweep::ops::reduce::{Reduce, ReduceDeviceOperands};

pub fn sound(cuda: &Cuda, prepared: &mut Prepared<Reduce>) -> upsweep::Result<Vec<f32>> {
    let stream = cuda.stream().clone();
    let mut output = cuda.upload(&[0.0f32])?;
    cuda.scope(&stream, |scope| {
        let input = cuda.upload(&[1.0f32])?;
        let operands = ReduceDeviceOperands {
            input: DeviceRef::of::<f32, _>(&input, &stream),
            output: DeviceMut::of::<f32, _>(&mut output, &stream),
        };
        scope.enqueue(prepared, operands, None)
    })?;
    cuda.download(&output)
}

fn main() {}
