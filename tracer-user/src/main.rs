//! The `cudatrace` program.
fn main() {
    match tracer_user::bpf::Kernel::load(&tracer_user::bpf::LoadOptions::default()) {
        Ok(_) => println!("ok"),
        Err(e) => println!("{:?}", e),
    }
}
