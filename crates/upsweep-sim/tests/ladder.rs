//! The rungs of the reduction, and what tells them apart.

mod support;

use std::time::Instant;
use support::{Bytes, plan_of, run};
use upsweep::ops::reduce::{Reduce, ReduceProblem};
use upsweep::types::{DType, Operator};
use upsweep_sim::{Kind, Sim};

#[test]
fn every_simulated_rung_adds_a_million_and_has_no_fault() {
    let sim = Sim::new();
    let n = 1 << 20;
    let values: Vec<f32> = (0..n).map(|i| ((i * 7) % 64) as f32 - 31.0).collect();
    let expected: f64 = values.iter().map(|x| f64::from(*x)).sum();
    let problem = ReduceProblem::whole(Operator::Sum, DType::F32, n).unwrap();
    for rung in ["0", "1", "2", "3", "4", "5a", "5b", "6", "7", "8", "9", "11", "13"] {
        let Ok(_) = upsweep::flow::Rung::<Reduce>::find(upsweep::device::caps::DeviceKind::Cuda, rung) else { continue };
        let plan = plan_of::<Reduce>(&sim, &problem, rung);
        let mut input = Bytes::of(&values);
        let start = Instant::now();
        sim.precompile(plan.program.iter()).unwrap();
        let built = start.elapsed();
        let start = Instant::now();
        let (mut output, report) = run::<Reduce>(&sim, &plan, &mut input);
        let launch = &report.launches[0];
        println!("{:20} built {built:?} ran {:?}", plan.rung.name, start.elapsed());
        for kind in Kind::ALL {
            let count = launch.total(kind);
            if count.requests > 0 {
                println!(
                    "    {:14} {:9} requests {:5.1} lanes {:6.2} sectors {:6.2} wavefronts {:8} conflicts {:.3} a thread",
                    kind.name(),
                    count.requests,
                    count.lanes as f64 / count.requests as f64,
                    count.sectors as f64 / count.requests as f64,
                    count.wavefronts as f64 / count.requests as f64,
                    count.bank_conflicts(),
                    launch.per_thread(kind)
                );
            }
        }
        for fault in report.faults() {
            println!("    {fault}");
        }
        assert_eq!(f64::from(output.as_of::<f32>()[0]), expected, "{}", plan.rung.name);
        assert_eq!(report.faults().count(), 0, "{}", plan.rung.name);
    }
}

/// Rung 5b takes the greatest by compare and swap, which begins with a volatile read: relaxed, and no race.
#[test]
fn a_volatile_read_of_global_memory_is_a_relaxed_one() {
    let sim = Sim::new();
    let values: Vec<f32> = (0..5000).map(|i| ((i * 7) % 640) as f32).collect();
    let problem = ReduceProblem::whole(Operator::Max, DType::F32, 5000).unwrap();
    let plan = plan_of::<Reduce>(&sim, &problem, "5b");
    let (mut output, report) = run::<Reduce>(&sim, &plan, &mut Bytes::of(&values));
    let faults: Vec<String> = report.faults().map(ToString::to_string).collect();
    assert_eq!((output.as_of::<f32>()[0], faults), (639.0, vec![]));
}
