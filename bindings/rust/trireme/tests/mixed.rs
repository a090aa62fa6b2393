//! A model of several types: its parameters as bytes.

mod support;

use support::{fails, options, ranks};
use trireme::{Dtype, Model, ModelOptions, Parameter, Status, Strategy};

#[test]
fn parameters_go_to_all_ranks_as_bytes() {
    for strategy in [Strategy::DataParallel, Strategy::Zero1, Strategy::Zero3, Strategy::HybridShard] {
        let seen = ranks(2, |communicator| {
            let options =
                ModelOptions { minimum_unit_bytes: 1, ..options(communicator, strategy) };
            let mut model = Model::new(communicator, &options).unwrap();
            model.add_parameter(&Parameter::new("narrow", Dtype::Bf16, &[5])).unwrap();
            model.add_parameter(&Parameter::new("wide", Dtype::F64, &[3])).unwrap();
            model.add_parameter(&Parameter::new("single", Dtype::F32, &[2, 3])).unwrap();
            model.seal().unwrap();
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
