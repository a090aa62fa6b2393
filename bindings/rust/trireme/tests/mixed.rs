//! A model of several types: its parameters as bytes, and by name.

mod support;

use support::{fails, options, ranks};
use trireme::{Bf16, Dtype, Model, Parameter, Status, Strategy, Units};

#[test]
fn parameters_go_to_all_ranks_as_bytes() {
    for strategy in
        [Strategy::DataParallel, Strategy::Zero1, Strategy::Zero3, Strategy::HybridShard]
    {
        let seen = ranks(2, |communicator| {
            let options = options(communicator, strategy)
                .units(Units { minimum_bytes: 1, ..Units::default() });
            let mut model = Model::new(communicator, &options).unwrap();
            model.add_parameter(&Parameter::new("narrow", Dtype::Bf16, &[5])).unwrap();
            model.add_parameter(&Parameter::new("wide", Dtype::F64, &[3])).unwrap();
            model.add_parameter(&Parameter::new("single", Dtype::F32, &[2, 3])).unwrap();
            model.seal().unwrap();
            let dtypes = [0, 1, 2].map(|unit| model.unit_info(unit).unwrap().dtype);
            assert_eq!(dtypes, [Dtype::Bf16, Dtype::F64, Dtype::F32]);
            let values: Vec<u8> = (0..58).collect();
            let given = (communicator.rank() == 1).then_some(&values[..]);
            model.set_parameter_bytes(given, 1).unwrap();
            fails(model.set_parameter_bytes(Some(&values[1..]), 1), Status::InvalidArgument);
            let error = fails(model.get_parameters::<f32>(), Status::InvalidArgument);
            assert!(error.message().contains("as bytes"), "{error}");
            model.get_parameter_bytes().unwrap()
        });
        for bytes in seen {
            assert_eq!(bytes, (0..58).collect::<Vec<u8>>(), "{strategy:?}");
        }
    }
}

#[test]
fn parameters_go_to_all_ranks_by_name() {
    for strategy in
        [Strategy::DataParallel, Strategy::Zero1, Strategy::Zero3, Strategy::HybridShard]
    {
        ranks(2, |communicator| {
            let options = options(communicator, strategy)
                .units(Units { minimum_bytes: 1, ..Units::default() });
            let mut model = Model::new(communicator, &options).unwrap();
            model.add_parameter(&Parameter::new("narrow", Dtype::Bf16, &[5])).unwrap();
            model.add_parameter(&Parameter::new("wide", Dtype::F64, &[3])).unwrap();
            model.add_parameter(&Parameter::new("single", Dtype::F32, &[2, 3])).unwrap();
            let tied = Parameter {
                tied_to: Some("single"),
                ..Parameter::new("tied", Dtype::F32, &[2, 3])
            };
            model.add_parameter(&tied).unwrap();
            model.seal().unwrap();
            for root in 0..2 {
                let narrow: Vec<Bf16> = (0..5).map(|i| Bf16(i + 10 * root as u16)).collect();
                let wide = [0.1 + f64::from(root), 0.2, -1e300];
                let single = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.5 + root as f32];
                let mut given = model.parameter_values();
                given.set("single", &single).unwrap();
                given.set("narrow", &narrow).unwrap();
                // Refused before anything is sent.
                let error =
                    fails(model.broadcast_parameters(Some(&given), root), Status::InvalidArgument);
                assert!(error.message().contains("no value for parameter \"wide\""), "{error}");
                let error = fails(given.set("wide", &single[..3]), Status::InvalidArgument);
                assert!(error.message().contains("\"wide\" is f64, and the value f32"), "{error}");
                let error = fails(given.set("wide", &wide[1..]), Status::InvalidArgument);
                assert!(error.message().contains("has 3 elements, and the value 2"), "{error}");
                let error = fails(given.set("tied", &single), Status::InvalidArgument);
                assert!(error.message().contains("no parameter \"tied\" of its own"), "{error}");
                given.set("wide", &wide).unwrap();
                let given = (communicator.rank() == root).then_some(&given);
                model.broadcast_parameters(given, root).unwrap();
                let seen = model.gather_parameters().unwrap();
                assert_eq!(seen.names().collect::<Vec<_>>(), ["narrow", "wide", "single"]);
                assert_eq!(seen.get::<Bf16>("narrow").unwrap(), narrow, "{strategy:?}");
                assert_eq!(seen.get::<f64>("wide").unwrap(), wide, "{strategy:?}");
                assert_eq!(seen.get::<f32>("single").unwrap(), single, "{strategy:?}");
                fails(seen.get::<f32>("wide"), Status::InvalidArgument);
            }
        });
    }
}
